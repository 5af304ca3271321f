/* SPDX-License-Identifier: MIT
 * Files of the store that have readers and lose their last name. A descriptor keeps such a file,
 * but it is closed when the worker dies; so before the publisher removes or replaces the name, it
 * makes another one, tmp/<the node's id>, which the next worker opens. It is removed with the last
 * reader. What is left after a first start, which has no readers, is removed by the sweep like
 * everything unknown in tmp/. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <stdlib.h>

/* Guarded by s->lock. */
struct retained {
	struct retained *next;
	uint64_t id;
	dev_t dev;
	ino_t ino;
	bool linked; /* tmp/<id> exists */
	bool linking; /* or is being made */
	bool ended; /* meanwhile: no reader is left */
};

static struct retained **find_id(struct staging *s, uint64_t id)
{
	struct retained **at = &s->drain.retained;
	while (*at && (*at)->id != id)
		at = &(*at)->next;
	return at;
}

static struct retained *find_file(struct staging *s, const struct stat *st)
{
	struct retained *r = s->drain.retained;
	while (r && (r->ino != st->st_ino || r->dev != st->st_dev))
		r = r->next;
	return r;
}

static void drop(struct staging *s, struct retained **at)
{
	struct retained *r = *at;
	*at = r->next;
	if (r->linked)
		trash_put(s, r->id, -1);
	free(r);
	atomic_fetch_sub(&s->drain.n_retained, 1);
}

void staging_retain(struct staging *s, uint64_t id, const struct stat *st, bool linked)
{
	LOCK_SCOPE(&s->lock);
	struct retained *r = *find_id(s, id) ? NULL : malloc(sizeof(*r));
	if (!r)
		return;
	*r = (struct retained){.next = s->drain.retained,
			       .id = id,
			       .linked = linked,
			       .dev = st->st_dev,
			       .ino = st->st_ino};
	s->drain.retained = r;
	atomic_fetch_add(&s->drain.n_retained, 1);
}

void staging_retain_end(struct staging *s, uint64_t id)
{
	LOCK_SCOPE(&s->lock);
	struct retained **at = find_id(s, id);
	if (*at && (*at)->linking)
		(*at)->ended = true;
	else if (*at)
		drop(s, at);
}

int staging_retained_open(struct staging *s, uint64_t id)
{
	char name[17];
	int tmp = io_store_tmp(s->o.store);
	io_tmp_name(id, name);
	return tmp < 0 ? -ENOENT : io_open_read(s->o.store, tmp, name, 0);
}

nlink_t staging_retained_links(struct staging *s, const struct stat *st)
{
	if (!atomic_load(&s->drain.n_retained) && !atomic_load(&s->drain.previous.n))
		return 0;
	LOCK_SCOPE(&s->lock);
	const struct retained *r = find_file(s, st);
	return (r && r->linked) + previous_links(s, st);
}

bool retain_has(struct staging *s, uint64_t id)
{
	return *find_id(s, id);
}

/* While this worker lives its readers continue without the name, too: an error is no reason not to
 * remove the file. */
void retain_before(struct staging *s, int dirfd, const char *name)
{
	struct stat st;
	char to[17];

	if (!atomic_load(&s->drain.n_retained) || io_stat(s->o.store, dirfd, name, &st) ||
	    !S_ISREG(st.st_mode))
		return;
	pthread_mutex_lock(&s->lock);
	struct retained *r = find_file(s, &st);
	bool due = r && !r->linked && !r->linking;
	if (due)
		r->linking = true;
	pthread_mutex_unlock(&s->lock);
	if (!due)
		return;
	io_tmp_name(r->id, to);
	int err = io_link(s->o.store, dirfd, name, io_store_tmp(s->o.store), to);
	LOCK_SCOPE(&s->lock);
	r->linking = false;
	r->linked = !err;
	if (r->ended)
		drop(s, find_id(s, r->id));
}

void retain_close(struct staging *s)
{
	while (s->drain.retained) {
		struct retained *r = s->drain.retained;
		s->drain.retained = r->next;
		free(r);
	}
}
