/* SPDX-License-Identifier: MIT
 *
 * A stage's life.
 *
 *	open ──▶ usable ──close──▶ gone
 *		    └──fork, in the child──▶ forked: returns -ECHILD, its files closed,
 *					     its memory unmapped
 */
#include "priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- forks ---- */

static pthread_mutex_t stages_lock = RANKED_MUTEX(RANK_STAGES);
static struct cairn_stage *stages;
static pthread_mutex_t opening_lock = RANKED_MUTEX(RANK_STAGE_OPENING);
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

void stage_block_forks(void)
{
	pthread_mutex_lock(&opening_lock);
}

void stage_allow_forks(void)
{
	pthread_mutex_unlock(&opening_lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&opening_lock);
	pthread_mutex_lock(&stages_lock);
	for (struct cairn_stage *s = stages; s; s = s->next)
		pthread_mutex_lock(&s->lock);
}

static void after_fork(void)
{
	for (struct cairn_stage *s = stages; s; s = s->next)
		pthread_mutex_unlock(&s->lock);
	pthread_mutex_unlock(&stages_lock);
	pthread_mutex_unlock(&opening_lock);
}

/* A buffer ends with its last descriptor: a data loader's process must not keep it. Its
 * memory is not mapped here at all (MADV_DONTFORK). */
static void in_child(void)
{
	for (struct cairn_stage *s = stages; s; s = s->next) {
		s->forked = true;
		for (struct stage_buffer *b = s->buffers; b; b = b->next)
			if (b->fd >= 0)
				close(b->fd);
	}
	after_fork();
	stages = NULL;
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

int stage_usable(const cairn_stage *stage)
{
	if (!stage)
		return fail(-EINVAL, "no stage: open one with cairn_stage_open");
	if (stage->forked)
		return fail(-ECHILD, "this process was forked from the one that opened the stage: "
				     "open one here, after the fork");
	return 0;
}

/* ---- notices ---- */

void stage_notice(cairn_stage *stage, enum notice why, const char *fmt, ...)
{
	char line[NOTICE_MAX];
	va_list ap;
	bool told;

	pthread_mutex_lock(&stage->lock);
	told = stage->noticed[why];
	stage->noticed[why] = true;
	pthread_mutex_unlock(&stage->lock);
	if (told || !stage->notice)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	stage->notice(stage->notice_arg, line);
}

/* ---- the mount ---- */

/* Goes up from dir within one filesystem: fd of the highest, which replaces *fd. */
static int climb(int *fd, struct stat *st)
{
	for (;;) {
		CLEANUP_CLOSE int up = openat(*fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		struct stat above;
		int t;

		if (up < 0)
			return -errno;
		if (fstat(up, &above))
			return -errno;
		if (above.st_dev != st->st_dev || above.st_ino == st->st_ino)
			return 0;
		*st = above;
		t = *fd;
		*fd = up;
		up = t;
	}
}

/* Sets stage->mount if the mount that fd is on has a buffers directory. Anything unexpected means
 * that it has none: then shards are written. */
static void find_mount(cairn_stage *stage, int fd, struct stat st)
{
	char link[64], path[PATH_MAX];
	struct stat dir;
	ssize_t n;

	CLEANUP_CLOSE int top = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (top < 0 || climb(&top, &st))
		return;
	if (fstatat(top, ".cairn/buffers", &dir, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(dir.st_mode))
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", top);
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0 || path[0] != '/')
		return;
	path[n] = '\0';
	stage->mount = strdup(path);
}

static int look(cairn_stage *stage, const char *dir)
{
	CLEANUP_CLOSE int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	char state[64];
	struct stat st;
	int err;

	if (fd < 0 || fstat(fd, &st))
		return fail_on(-errno, "open", dir);
	stage->dev = st.st_dev;
	err = mount_state(dir, state, sizeof(state));
	if (err == -ENODATA) /* not a cairnfs */
		return 0;
	if (err)
		return fail_on(err, "open", dir);
	stage->cairnfs = true;
	if (!(stage->flags & CAIRN_OWN_ONLY))
		find_mount(stage, fd, st);
	return 0;
}

/* ---- open and close ---- */

static int check_options(const struct cairn_options *o, struct cairn_options *out)
{
	*out = (struct cairn_options){.size = sizeof(*out)};
	if (!o)
		return 0;
	if (o->size < offsetof(struct cairn_options, flags) || o->size > 4096)
		return fail(-EINVAL, "cairn_options.size must be sizeof(struct cairn_options)");
	memcpy(out, o, o->size < sizeof(*out) ? o->size : sizeof(*out));
	if (out->flags & ~(CAIRN_NO_CUDA | CAIRN_OWN_ONLY))
		return fail(-EINVAL, "cairn_options.flags: unknown bits in 0x%x", out->flags);
	if (out->device < 0)
		return fail(-EINVAL, "cairn_options.device is 1 + the ordinal, or 0");
	return 0;
}

static cairn_stage *new_stage(const struct cairn_options *o)
{
	cairn_stage *stage = calloc(1, sizeof(*stage));

	if (!stage)
		return NULL;
	stage->flags = o->flags;
	stage->idle_bytes = o->idle_bytes ? o->idle_bytes : UINT64_MAX;
	stage->notice = o->notice;
	stage->notice_arg = o->notice_arg;
	lock_init(&stage->lock, RANK_STAGE);
	lock_init(&stage->load_lock, RANK_STAGE_LOAD);
	pthread_cond_init(&stage->load_cond, NULL);
	return stage;
}

static void free_stage(cairn_stage *stage)
{
	pthread_mutex_destroy(&stage->lock);
	pthread_mutex_destroy(&stage->load_lock);
	pthread_cond_destroy(&stage->load_cond);
	free(stage->mount);
	free(stage);
}

static int open_stage(const char *dir, const struct cairn_options *options, bool stand_in,
		      cairn_stage **out)
{
	struct cairn_options o;
	cairn_stage *stage;
	int err;

	if (!out)
		return fail(-EINVAL, "cairn_stage_open: stage is NULL");
	*out = NULL;
	err = dir ? check_options(options, &o) : fail(-EINVAL, "no directory");
	if (err)
		return err;
	stage = new_stage(&o);
	if (!stage)
		return fail_on(-ENOMEM, "open", dir);
	err = look(stage, dir);
	if (!err && stand_in) {
		stage->stand_in = true;
		stage->mount = strdup(dir);
	}
	if (err) {
		free_stage(stage);
		return err;
	}
	gpu_open(stage, o.device - 1);
	pthread_once(&fork_once, watch_forks);
	pthread_mutex_lock(&stages_lock);
	stage->next = stages;
	stages = stage;
	pthread_mutex_unlock(&stages_lock);
	*out = stage;
	return 0;
}

int cairn_stage_open(const char *dir, const struct cairn_options *options, cairn_stage **stage)
{
	return open_stage(dir, options, false, stage);
}

int stage_stand_in(const char *tmpfs, const struct cairn_options *options, cairn_stage **stage)
{
	return open_stage(tmpfs, options, true, stage);
}

static void unlist(cairn_stage *stage)
{
	struct cairn_stage **p = &stages;

	pthread_mutex_lock(&stages_lock);
	while (*p != stage)
		p = &(*p)->next;
	*p = stage->next;
	pthread_mutex_unlock(&stages_lock);
}

int cairn_stage_close(cairn_stage *stage)
{
	unsigned shards, calls;
	int err;

	if (!stage)
		return 0;
	err = stage_usable(stage);
	if (err)
		return err;
	pthread_mutex_lock(&stage->lock);
	shards = stage->shards_open;
	calls = stage->calls;
	pthread_mutex_unlock(&stage->lock);
	if (shards || calls)
		return fail(-EBUSY,
			    "%u shards are neither committed nor aborted, %u loads in progress",
			    shards, calls);
	unlist(stage);
	for (unsigned i = 0; i < LOAD_CHUNKS; i++)
		if (stage->chunk[i].buffer) {
			gpu_wait(stage, stage->chunk[i].buffer);
			buffer_free(stage, stage->chunk[i].buffer);
		}
	buffers_trim(stage);
	gpu_close(stage);
	free_stage(stage);
	return 0;
}

int cairn_stage_trim(cairn_stage *stage)
{
	int err = stage_usable(stage);

	if (!err)
		buffers_trim(stage);
	return err;
}

int cairn_stage_stats(cairn_stage *stage, struct cairn_stats *out, size_t size)
{
	int err = stage_usable(stage);

	if (err)
		return err;
	if (!out || size > 65536)
		return fail(-EINVAL, "cairn_stage_stats: size must be sizeof(struct cairn_stats)");
	memset(out, 0, size);
	pthread_mutex_lock(&stage->lock);
	memcpy(out, &stage->stats, size < sizeof(*out) ? size : sizeof(*out));
	pthread_mutex_unlock(&stage->lock);
	return 0;
}

const char *cairn_stage_mount(const cairn_stage *stage)
{
	bool refused;

	if (!stage || stage->forked || !stage->mount || stage->stand_in)
		return NULL;
	pthread_mutex_lock((pthread_mutex_t *)&stage->lock);
	refused = stage->refused;
	pthread_mutex_unlock((pthread_mutex_t *)&stage->lock);
	return refused ? NULL : stage->mount;
}
