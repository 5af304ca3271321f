/* SPDX-License-Identifier: MIT
 *
 * cairn restore-previous --list: what a store keeps of checkpoints that were being overwritten in
 * place.
 */
#include "tools/cairn/ckpt/ckpt.h"
#include "previous.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>

struct kept {
	char path[PREVIOUS_KEY]; /* of the directory, below the store */
	bool whole; /* else it was given up */
	bool there; /* the directory is still at that path */
	uint64_t bytes; /* that its removal frees */
	time_t since;
};

/* As in lost+found. */
static void decode(const char *name, size_t len, char out[PREVIOUS_KEY])
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		bool slash = i + 2 < len && !strncmp(name + i, "%2F", 3);
		bool percent = i + 2 < len && !strncmp(name + i, "%25", 3);

		out[n++] = slash ? '/' : name[i];
		i += slash || percent ? 2 : 0;
	}
	out[n] = '\0';
}

static bool is_there(int root, const char *path, const struct previous_key *k)
{
	CLEANUP_CLOSE int fd =
		openat(root, *path ? path : ".", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct previous_key at;

	return fd >= 0 && !previous_key_of(fd, &at) && at.ino == k->ino && at.birth == k->birth;
}

static int read_kept(int root, int all, const char *name, struct kept *out)
{
	CLEANUP_CLOSE int fd = openat(all, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct names names = {0};
	struct previous_key k;
	struct stat st;

	*out = (struct kept){.whole = false};
	if (!previous_parse(name, &k))
		return -ENOENT;
	int err = fd < 0 || fstat(fd, &st) ? -errno : names_read(fd, &names);
	for (size_t i = 0; !err && i < names.n; i++) {
		struct stat f;

		if (fstatat(fd, names.v[i], &f, AT_SYMLINK_NOFOLLOW))
			err = errno == ENOENT ? 0 : -errno;
		else if (f.st_nlink == 1)
			out->bytes += (uint64_t)f.st_blocks * 512;
		out->whole |= !err && !strcmp(names.v[i], PREVIOUS_COMMIT);
	}
	names_free(&names);
	if (err)
		return err;
	out->since = st.st_mtime;
	decode(name, k.path_len, out->path);
	out->there = is_there(root, out->path, &k);
	return 0;
}

static void print_json_kept(struct json_out *j, const char *name, const struct kept *k)
{
	json_open(j, NULL, '{');
	json_put_path(j, "path", k->path);
	json_put_path(j, "key", name);
	json_put_bool(j, "whole", k->whole);
	json_put_bool(j, "there", k->there);
	json_put_u64(j, "bytes", k->bytes);
	json_put_i64(j, "since", k->since);
	json_close(j, '}');
}

static void print_kept(const char *top, const char *name, const struct kept *k)
{
	char size[32], age[32];
	time_t now = time(NULL);

	human_time(now > k->since ? (double)(now - k->since) : 0, age);
	printf("%s  %s, for %s%s\n", k->path, human_bytes(k->bytes, size), age,
	       k->whole ? "" : ", not kept: no room or hard links");
	if (!k->there)
		printf("    its directory is not there any more (removed or renamed): "
		       "%s/.cairn/" PREVIOUS_DIR "/%s\n",
		       top, name);
}

int previous_list(const struct location *p, bool json)
{
	CLEANUP_CLOSE int all =
		openat(p->root, ".cairn/" PREVIOUS_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct names names = {0};
	struct json_out j;
	struct kept k;
	int err = all >= 0 ? names_read(all, &names) : errno == ENOENT ? 0 : -errno;

	if (json && !err) {
		json_begin(&j, stdout);
		json_open(&j, NULL, '[');
	}
	for (size_t i = 0; !err && i < names.n; i++) {
		int one = read_kept(p->root, all, names.v[i], &k);

		if (one == -ENOENT) /* it ends at present */
			continue;
		err = one;
		if (!err && json)
			print_json_kept(&j, names.v[i], &k);
		else if (!err)
			print_kept(p->top, names.v[i], &k);
	}
	names_free(&names);
	if (err) {
		complain("%s/.cairn/%s: %s", p->top, PREVIOUS_DIR, strerror(-err));
		return CAIRN_FAILED;
	}
	if (json) {
		json_close(&j, ']');
		putchar('\n');
	}
	return CAIRN_OK;
}
