/* SPDX-License-Identifier: MIT
 * A name that commits what other nodes write (a checkpoint's .metadata) is held at its place in
 * the order until their files are in the store: the orders of the nodes are independent. After a
 * time limit it is published with a notice of what is missing. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define ASK_AGAIN_NS 100000000u

struct commit {
	uint64_t dir;
	const char *name;
};

static struct commit commit_of(const struct staging *s, const struct rec *r)
{
	struct commit none = {.name = NULL};
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;

	if (r->flags & REC_ABSENT || (r->type == REC_RENAME && r->flags & (REC_SHADOW | REC_DIR)))
		return none;
	if (r->type == REC_RENAME && s->o.hold.commits(r->name2))
		return (struct commit){.dir = r->dir2, .name = r->name2};
	while (r->type == REC_SEAL &&
	       (kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		if (kind == 1 && s->o.hold.commits(name.name))
			return (struct commit){.dir = name.dir, .name = name.name};
	return none;
}

bool hold_due(const struct staging *s, const struct pend *p)
{
	return s->o.hold.patience_ms && !p->released && commit_of(s, &p->r).name;
}

/* The bytes to be published: in tmp/, or in the store under their present name. */
static int open_bytes(struct staging *s, const struct pend *p)
{
	int d, fd;
	if (p->r.type == REC_SEAL)
		return io_tmp_open(s->o.store, p->tmp_id, O_RDONLY);
	int err = staging_dir_get(s, p->r.dir, &d);
	if (err)
		return err;
	fd = io_open_read(s->o.store, d, p->r.name, 0);
	staging_dir_put(s, p->r.dir);
	return fd;
}

static bool is_missing(struct staging *s, const struct pend *p, struct commit c, char *what,
		       size_t cap)
{
	int d, fd = open_bytes(s, p);
	if (fd < 0)
		return false; /* applying it will report the error */
	bool missing = false;
	if (!staging_dir_get(s, c.dir, &d)) {
		missing = s->o.hold.missing(s->o.ctx, p->r.seq, c.dir, d, fd, what, cap);
		staging_dir_put(s, c.dir);
	}
	close(fd);
	return missing;
}

/* Half of staging is not durable: writers need the memory that is held back with it. Durable files
 * do not count, they can be evicted. */
static bool is_crowded(const struct staging *s)
{
	uint64_t bytes = s->files.used;
	for (const struct staged *f = s->files.lru_head; f && bytes > s->o.budget_bytes / 2;
	     f = f->lists.lru_next)
		bytes -= f->memory.charged;
	return bytes > s->o.budget_bytes / 2;
}

bool hold_waits(struct staging *s, struct pend *p)
{
	char what[STAGING_HELD] = "", path[400], text[1000];
	struct commit c = commit_of(s, &p->r);
	uint64_t now = now_ns();

	if (!p->held_ns)
		p->held_ns = now;
	bool enough = now - p->held_ns >= s->o.hold.patience_ms * 1000000ull || is_crowded(s);
	pthread_mutex_unlock(&s->lock);
	bool missing = is_missing(s, p, c, what, sizeof(what));
	dirs_root_relative(s, c.dir, c.name, path, sizeof(path));
	pthread_mutex_lock(&s->lock);
	p->released = !missing || enough;
	if (!p->released) {
		snprintf(s->st.held, sizeof(s->st.held), "%.200s: %.200s", path, what);
		sleeper_wait(s, &s->pub, now_ns() + ASK_AGAIN_NS);
		return true;
	}
	if (missing) {
		snprintf(text, sizeof(text),
			 "%s is published, but %s (waited %llu s for another node to write it)",
			 path, what, (unsigned long long)((now - p->held_ns) / 1000000000u));
		pthread_mutex_unlock(&s->lock);
		s->o.notice(s->o.ctx, text);
		pthread_mutex_lock(&s->lock);
	}
	return false;
}
