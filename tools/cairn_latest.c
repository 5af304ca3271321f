/* SPDX-License-Identifier: MIT
 *
 * cairn latest: the newest checkpoint below a directory that is safe: complete, and durable.
 */
#include "cairn_ckpt.h"

#include <fcntl.h>
#include <getopt.h>
#include <string.h>

struct found {
	char *path;
	bool has_step;
	uint64_t step;
	struct timespec time;
};

/* By step where both have one: files may be copied in any order. Else by time. */
static bool is_newer(const struct found *a, const struct found *b)
{
	if (!b->path)
		return true;
	if (a->has_step && b->has_step && a->step != b->step)
		return a->step > b->step;
	if (a->time.tv_sec != b->time.tv_sec)
		return a->time.tv_sec > b->time.tv_sec;
	return a->time.tv_nsec > b->time.tv_nsec;
}

struct search {
	const char *top;
	bool on_mount, verbose, incomplete;
	struct found best;
	enum ckpt_format last;		/* of the checkpoint before, in the order of names */
	uint32_t last_ranks;
};

/* 1: it is a checkpoint, and what is in it belongs to it; 0: look inside; or -errno. */
static int consider(struct search *s, int dirfd, const char *name, const char *below,
		    const struct stat *st)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	CLEANUP_FREE char *path = NULL;
	struct ckpt_verdict v;
	struct found f;
	int done, err;

	if (asprintf(&path, "%s%s%s", s->top, *below ? "/" : "", below) < 0)
		return -ENOMEM;
	err = ckpt_open(dirfd, name, path, s->on_mount, &c);
	if (err || c.kind.format == CKPT_NONE)
		return err == -ENOMEM ? err : 0;
	f = (struct found){ .path = path, .has_step = c.kind.has_step, .step = c.kind.step,
			    .time = st->st_mtim };
	/* loose files of tensors may stand beside whole checkpoints: look further down */
	done = c.kind.format != CKPT_TORCH && c.kind.format != CKPT_SAFETENSORS;
	if (!is_newer(&f, &s->best))
		return done;	/* not read: it could not win */
	err = ckpt_read(&c, false, NULL, NULL);
	if (err)
		return err;
	ckpt_verdict(&c, &v);
	if (s->last == c.kind.format)
		ckpt_expect_ranks(&c.kind, s->last_ranks, c.quiet_s, &v);
	s->last = c.kind.format;
	s->last_ranks = v.ranks_expected;
	if (!ckpt_is_safe(&c, &v)) {
		if (s->verbose)
			complain("%s: %s%s%s", path, ckpt_state_name(v.state), *v.why ? ": " : "",
				 v.state == CKPT_COMPLETE ? ", not durable" : v.why);
		return done;
	}
	free(s->best.path);
	s->best = f;
	path = NULL;
	return done;
}

static int search(struct search *s, int fd, const char *skip)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	int err = walk_open(fd, -1, skip, &w);

	while (!err && walk_next(w, &it) != WALK_END) {
		if (it.what == WALK_ERROR && it.err != -ENOENT) {
			complain("%s/%s: %s", s->top, it.path, strerror(-it.err));
			s->incomplete = true;
		}
		if (it.what != WALK_ENTRY || !(S_ISDIR(it.st.st_mode) || S_ISREG(it.st.st_mode)))
			continue;
		if (S_ISREG(it.st.st_mode)) { /* a .ckpt stands for itself; other files for their
						 directory */
			size_t n = strlen(it.name);

			if (n < 5 || strcmp(it.name + n - 5, ".ckpt"))
				continue;
		}
		err = consider(s, it.dirfd, it.name, it.path, &it.st);
		if (err > 0) {
			err = 0;
			walk_leave(w);	/* what is inside belongs to it */
		}
	}
	return err;
}

int cmd_latest(int argc, char **argv)
{
	static const struct option longs[] = { { "verbose", no_argument, NULL, 'v' }, { 0 } };
	CLEANUP_PLACE struct place p = PLACE_NONE;
	CLEANUP_CLOSE int fd = -1;
	struct search s = { 0 };
	int c, err;

	while ((c = getopt_long(argc, argv, "v", longs, NULL)) != -1) {
		if (c != 'v')
			return complain_option("latest", argv);
		s.verbose = true;
	}
	if (argc - optind != 1)
		return complain_usage("latest", "one directory");
	s.top = argv[optind];
	fd = open(s.top, O_PATH | O_DIRECTORY | O_CLOEXEC);
	err = fd < 0 ? -errno : place_find(s.top, &p);
	if (fd < 0 || (err && err != -ENODEV && err != -EXDEV)) {
		complain("%s: %s", s.top, strerror(-err));
		return CAIRN_USAGE;
	}
	s.on_mount = p.on_mount;
	err = search(&s, fd, ".cairn");
	if (err) {
		complain("%s: %s", s.top, strerror(-err));
	} else if (!s.best.path) {
		complain("%s: no checkpoint that is complete%s", s.top,
			 s.on_mount ? " and durable" : "");
		err = -ENOENT;
	} else {
		puts(s.best.path);
	}
	free(s.best.path);
	return err || s.incomplete ? CAIRN_FAILED : CAIRN_OK;
}
