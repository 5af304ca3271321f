/* SPDX-License-Identifier: MIT
 * Descriptors or memory are missing: cairnfs has too many files open, or the machine has, or it has
 * no memory left. The store does not fail, and the shortage passes: what failed for it waits a
 * little and is tried again. If it lasts, it is an error like others: it halts publication, and who
 * waits is told. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PAUSE_MIN_NS 10000000u
#define PAUSE_MAX_NS 1000000000u
#define PATIENCE_NS 30000000000ull
#define TELL_EVERY_NS 60000000000ull

bool is_failure(int err)
{
	return err == -EIO || err == -ESTALE || err == -ENOTCONN || err == -EROFS ||
	       err == -ESHUTDOWN || err == -ECONNABORTED || err == -ETIMEDOUT || is_lack(err);
}

static const char *remedy_of(int err)
{
	switch (err) {
	case -EMFILE: return "; raise the hard limit of open files (ulimit -Hn, LimitNOFILE=)";
	case -ENFILE: return "; raise the machine's limit of open files (sysctl fs.file-max)";
	default: return "";
	}
}

/* s->lock held, dropped meanwhile */
static void tell(struct staging *s, const struct pend *p, int err, uint64_t now)
{
	char path[sizeof(s->st.last_error)], text[500];

	dirs_root_relative(s, p->r.dir, p->r.name, path, sizeof(path));
	snprintf(s->st.last_error, sizeof(s->st.last_error), "%.180s: %s", path, strerror(-err));
	if (s->drain.lack_told_ns && now - s->drain.lack_told_ns < TELL_EVERY_NS)
		return;
	s->drain.lack_told_ns = now;
	s->st.errors++;
	snprintf(text, sizeof(text),
		 LEVEL_WARNING "%.180s cannot be written to the store now: %s; it is tried again%s",
		 path, strerror(-err), remedy_of(err));
	pthread_mutex_unlock(&s->lock);
	s->o.notice(s->o.ctx, text);
	pthread_mutex_lock(&s->lock);
}

bool lack_wait(struct staging *s, struct pend *p, int err)
{
	uint64_t now = monotonic_ns();
	uint64_t patience = s->o.lack_ms ? s->o.lack_ms * 1000000ull : PATIENCE_NS;

	if (!is_lack(err) || s->stop)
		return false;
	if (!p->tries.lacks_ns)
		p->tries.lacks_ns = now;
	uint64_t lasted = now - p->tries.lacks_ns, until = now + lasted;
	if (lasted >= patience)
		return false;
	if (lasted < PAUSE_MIN_NS)
		until = now + PAUSE_MIN_NS;
	if (lasted > PAUSE_MAX_NS)
		until = now + PAUSE_MAX_NS;
	tell(s, p, err, now);
	while (!s->stop && monotonic_ns() < until)
		staging_wait_until(&s->done_cond, &s->lock, until);
	return true;
}
