/* SPDX-License-Identifier: MIT
 * Predicts the size of a new file: that of the same shard of the previous checkpoint.
 * run/step-200/__0_0.distcp is looked up as run/step-#/__0_0.distcp. A new name is expected to be
 * as large as others of its shape in such a directory. After a restart, the sizes come from the
 * store: from the newest directory of the same shape. A temporary name is expected to be as large
 * as the last one in such a directory.
 */
#include "fs/tree/inside.h"
#include "io/clock.h"
#include "io/entries.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define ENTRIES_MAX 4096u /* examined, once for each shape */

/* Names drawn at random before a rename: ".tmp" and 6 letters or digits (safetensors and others
 * written in Rust, tempfile crate), "tmp" and 8 (Python's tempfile). */
static bool is_temporary(const char *name)
{
	bool dot = name[0] == '.';
	size_t all = dot ? 10 : 11, i = dot ? 4 : 3;

	if (strncmp(name + dot, "tmp", 3) || strlen(name) != all)
		return false;
	while (isalnum((unsigned char)name[i]) || name[i] == '_')
		i++;
	return i == all;
}

/* A run of digits counts as one '#'. */
static uint64_t hash_shape(uint64_t h, const char *s)
{
	char shape[MAX_NAME + 1];
	size_t n = 0;
	for (; *s && n < sizeof(shape); s++)
		if (!isdigit((unsigned char)*s))
			shape[n++] = *s;
		else if (!isdigit((unsigned char)s[1]))
			shape[n++] = '#';
	return hash_bytes(h, shape, n);
}

/* All temporary names have one shape. */
static uint64_t hash_name(uint64_t h, const char *name)
{
	return hash_shape(h ^ 2, is_temporary(name) ? "tmp*" : name);
}

static uint64_t hash_dirs(struct fs *fs, struct node *dir)
{
	uint64_t h = 0;
	for (unsigned depth = 0; dir && dir != fs->tree.root && dir->names && depth < 64; depth++) {
		h = hash_shape(h, dir->names->name);
		dir = dir->names->dir;
	}
	return h;
}

static uint64_t get(struct fs *fs, uint64_t key)
{
	return fs->expect[key % EXPECT_SLOTS].key == key ? fs->expect[key % EXPECT_SLOTS].size
							 : STAGED_SIZE_UNKNOWN;
}

static void set(struct fs *fs, uint64_t key, uint64_t size)
{
	fs->expect[key % EXPECT_SLOTS].key = key;
	fs->expect[key % EXPECT_SLOTS].size = size;
}

uint64_t expect_size(struct fs *fs, struct node *dir, const char *name)
{
	uint64_t h = hash_dirs(fs, dir);
	uint64_t size = get(fs, hash_text(h ^ 1, name));
	return size != STAGED_SIZE_UNKNOWN ? size : get(fs, hash_name(h, name));
}

void expect_note(struct fs *fs, struct node *n, uint64_t size)
{
	if (!n->names)
		return;
	uint64_t h = hash_dirs(fs, n->names->dir);
	set(fs, hash_text(h ^ 1, n->names->name), size);
	set(fs, hash_name(h, n->names->name), size);
}

void expect_of(struct fs *fs, struct node *n)
{
	struct staged_info i;

	staged_get_state(n->sf, &i);
	expect_note(fs, n, i.blocks * 512 < i.size ? i.blocks * 512 : i.size);
}

/* A descriptor of the newest directory in parent, other than own, that has own's shape. */
static int newest_sibling(struct fs *fs, int parent, const char *own)
{
	uint64_t shape = hash_shape(0, own);
	struct timespec when = {0};
	struct dirent *e;
	char name[256] = "";
	struct stat st;
	CLEANUP_DIR DIR *d = entries_of(io_open_list(fs->store, parent));

	for (unsigned i = 0; i < ENTRIES_MAX && (e = entries_next(d)); i++) {
		if (!strcmp(e->d_name, own) || hash_shape(0, e->d_name) != shape ||
		    io_stat(fs->store, parent, e->d_name, &st) || !S_ISDIR(st.st_mode))
			continue;
		if (time_is_later(st.st_mtim, when)) {
			when = st.st_mtim;
			strcpy(name, e->d_name);
		}
	}
	return name[0] ? io_open_dir(fs->store, parent, name) : -ENOENT;
}

uint64_t expect_from_store(struct fs *fs, struct node *dir, const char *name)
{
	uint64_t h = hash_dirs(fs, dir), shape = hash_name(h, name), size = STAGED_SIZE_UNKNOWN;
	struct asking asking;
	char own[256];
	struct stat st;
	int parent;

	if (dir == fs->tree.root || !dir->names || session_is_silent(fs) ||
	    get(fs, shape) != STAGED_SIZE_UNKNOWN || fs->expect[shape % EXPECT_SLOTS].key == shape)
		return STAGED_SIZE_UNKNOWN;
	set(fs, shape, STAGED_SIZE_UNKNOWN); /* asks the store only once */
	strcpy(own, dir->names->name);
	uint64_t parent_id = dir->names->dir->id;
	pthread_mutex_unlock(&fs->tree.lock);
	session_may_block(fs);
	session_asks(fs, &asking);
	if (staging_dir_get(fs->s, parent_id, &parent)) {
		session_asked(fs, &asking);
		pthread_mutex_lock(&fs->tree.lock);
		return STAGED_SIZE_UNKNOWN;
	}
	int fd = newest_sibling(fs, parent, own);
	if (fd >= 0 && io_stat(fs->store, fd, name, &st) == 0 && S_ISREG(st.st_mode))
		size = (uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size
			       ? (uint64_t)st.st_blocks * 512
			       : (uint64_t)st.st_size;
	if (fd >= 0)
		close(fd);
	staging_dir_put(fs->s, parent_id);
	session_asked(fs, &asking);
	pthread_mutex_lock(&fs->tree.lock);
	if (size != STAGED_SIZE_UNKNOWN) {
		set(fs, hash_text(h ^ 1, name), size);
		set(fs, shape, size);
	}
	return size;
}
