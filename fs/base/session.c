/* SPDX-License-Identifier: MIT
 * The threads that answer the kernel. One thread at a time reads requests, which keeps them in the
 * order in which they were sent: the kernel queues a RELEASE before close(2) returns, so whatever
 * the same program does next is read after it. Operations that take a place in the order wait for
 * all RELEASEs read before them.
 *
 * The reader answers short requests itself and then reads on: waking another thread costs more than
 * most answers. Before a request that may take long (session_may_block), it passes the role of
 * reader on.
 */
#include "fs/base/base.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "io/thread.h"

#define NO_READER (-1)
/* for this long after a slow answer of the store, each request to it is treated as slow. Passing
 * the role of reader on each time costs a small file 30 more wakings, and doubles its CPU time */
#define SLOW_NS 2000000000ull
#define STUCK_NS 100000000u /* an answer that takes longer should have passed the role on */
#define LOOK_AFTER_NS 300000000u /* after this it is found out whether the store answers */
#define LOOK_EVERY_NS 1000000000u
#define SECOND_MAX 65536u /* bytes of such a request: names */

_Thread_local struct current current;

struct slot_arg {
	struct fs *fs;
	unsigned slot;
	void *buf;
};

static struct slot_arg *slot_arg_new(struct fs *fs, unsigned slot)
{
	struct slot_arg *a = malloc(sizeof(*a));
	void *buf = aligned_alloc(4096, REQUEST_MAX);

	if (!a || !buf) {
		free(a);
		free(buf);
		return NULL;
	}
	*a = (struct slot_arg){.fs = fs, .slot = slot, .buf = buf};
	return a;
}

static void slot_arg_free(struct slot_arg *a)
{
	if (a)
		free(a->buf);
	free(a);
}

void release_barrier(struct fs *fs)
{
	bool wait = true;
	pthread_mutex_lock(&fs->tickets.lock);
	while (wait) {
		wait = false;
		for (unsigned i = 0; i < N_THREADS; i++)
			wait |= i != current.slot && fs->tickets.of_slot[i] &&
				fs->tickets.of_slot[i] <= current.ticket;
		if (wait) {
			/* takes the read lock, which comes first */
			if (current.reads) {
				pthread_mutex_unlock(&fs->tickets.lock);
				session_may_block(fs);
				pthread_mutex_lock(&fs->tickets.lock);
				continue;
			}
			fs->tickets.n_barred++;
			pthread_cond_wait(&fs->tickets.cond, &fs->tickets.lock);
			fs->tickets.n_barred--;
		}
	}
	pthread_mutex_unlock(&fs->tickets.lock);
}

/* Becomes the reader, reads one request, numbers it if it is a RELEASE. */
static int read_one(struct fs *fs, void *buf, int slot)
{
	struct received r;

	pthread_mutex_lock(&fs->reading.lock);
	while (fs->reading.reader != NO_READER && fs->reading.reader != slot)
		pthread_cond_wait(&fs->reading.cond, &fs->reading.lock);
	fs->reading.reader = slot;
	int n = fs->wire.receive(fs, buf, REQUEST_MAX, &r);
	if (n > 0) {
		pthread_mutex_lock(&fs->tickets.lock);
		if (r.release)
			fs->tickets.of_slot[slot] = ++fs->tickets.last;
		current = (struct current){.unique = r.unique,
					   .resent = r.resent,
					   .ticket = fs->tickets.last,
					   .slot = (unsigned)slot};
		pthread_mutex_unlock(&fs->tickets.lock);
	}
	fs->reading.since = monotonic_ns();
	pthread_mutex_unlock(&fs->reading.lock);
	return n;
}

/* Only tries the lock: session_look() may have appointed another reader, which holds the lock until
 * a request arrives, perhaps not before this one is answered. */
static void pass_on(struct fs *fs, int slot)
{
	while (atomic_load(&fs->reading.reader) == slot) {
		if (pthread_mutex_trylock(&fs->reading.lock)) {
			sched_yield(); /* the holder is only checking who is the reader */
			continue;
		}
		if (fs->reading.reader == slot) {
			fs->reading.reader = NO_READER;
			pthread_cond_signal(&fs->reading.cond);
		}
		pthread_mutex_unlock(&fs->reading.lock);
	}
}

void session_may_block(struct fs *fs)
{
	if (current.reads) {
		current.reads = false;
		pass_on(fs, (int)current.slot);
	}
}

void session_may_take_long(struct fs *fs)
{
	struct pollfd p = {.fd = fs->wire.fd, .events = POLLIN};
	if (current.reads && poll(&p, 1, 0) > 0)
		session_may_block(fs);
}

/* ---- how long operations take ---- */

void session_timed(enum timed_op op)
{
	current.timed = op;
	if (!current.second)
		current.begun_ns = monotonic_ns();
}

static void timed_end(struct fs *fs)
{
	struct timing *t = &fs->timings.of[current.timed];
	unsigned i = 0;

	if (!current.timed)
		return;
	uint64_t us = (monotonic_ns() - current.begun_ns) / 1000;
	for (uint64_t le = 100; i < TIMING_BUCKETS - 1 && us > le; i++)
		le *= 4;
	atomic_fetch_add(&t->buckets[i], 1);
	atomic_fetch_add(&t->sum_us, us);
	current.timed = TIMED_NONE;
}

/* ---- waiting for the store ----
 *
 * Most answers of the store come at once and cost less than passing the role of reader on. When one
 * does not, session_look() notices; for some seconds after that no thread asks the store while it
 * is the reader. Before all threads wait for the store, a thread that does so gives its slot to a
 * new thread. */
#define ASKING_MAX (N_THREADS / 2)

static void *answer_main(void *arg);

/* This thread finishes its request outside its slot, and a new thread gets the slot. Not for a
 * request whose RELEASE others wait for. */
static void leave_slot(struct fs *fs)
{
	struct slot_arg *a = slot_arg_new(fs, current.slot);
	pthread_t t;

	pthread_mutex_lock(&fs->tickets.lock);
	bool release = fs->tickets.of_slot[current.slot];
	pthread_mutex_unlock(&fs->tickets.lock);
	if (!a || release) {
		slot_arg_free(a);
		return;
	}
	atomic_fetch_add(&fs->slots.n_offloaded, 1);
	/* the thread that joins all slots must see the last one */
	pthread_mutex_lock(&fs->slots.lock);
	if (!fs->slots.joining && !pthread_create(&t, NULL, answer_main, a)) {
		fs->slots.thread[current.slot] = t;
		pthread_detach(pthread_self());
		current.slotted = false;
		current.left = true;
	}
	pthread_mutex_unlock(&fs->slots.lock);
	if (!current.left) {
		atomic_fetch_sub(&fs->slots.n_offloaded, 1);
		slot_arg_free(a);
	}
}

static bool is_slow(struct fs *fs, uint64_t now)
{
	return now < atomic_load_explicit(&fs->slots.slow_until, memory_order_relaxed);
}

bool session_is_silent(const struct fs *fs)
{
	return io_store_silent_since(fs->store);
}

void session_gives(void)
{
	current.gives = !current.second && current.request && current.request_len <= SECOND_MAX;
}

void session_asks(struct fs *fs, struct asking *a)
{
	unsigned asking = atomic_fetch_add(&fs->slots.n_asking, 1);
	uint64_t now = monotonic_ns();
	if (asking >= ASKING_MAX || is_slow(fs, now))
		session_may_block(fs);
	if (asking >= ASKING_MAX && current.slotted)
		leave_slot(fs);
	*a = (struct asking){.since = now, .who = current};
	/* what was last seen does not answer it: it would have been used at once */
	a->who.gives &= !session_is_silent(fs);
	LOCK_SCOPE(&fs->slots.lock);
	a->next = fs->slots.asking;
	a->back = &fs->slots.asking;
	if (a->next)
		a->next->back = &a->next;
	fs->slots.asking = a;
}

bool session_asked(struct fs *fs, struct asking *a)
{
	uint64_t now = monotonic_ns();
	pthread_mutex_lock(&fs->slots.lock);
	*a->back = a->next;
	if (a->next)
		a->next->back = a->back;
	pthread_mutex_unlock(&fs->slots.lock);
	atomic_fetch_sub(&fs->slots.n_asking, 1);
	atomic_fetch_add(&fs->slots.n_answered, 1);
	if (now - a->since > STUCK_NS && is_slow(fs, now))
		atomic_store(&fs->slots.slow_until, now + SLOW_NS);
	if (a->taken) {
		current.given = true;
		current.timed = TIMED_NONE; /* the other one counts it */
	}
	return !a->taken;
}

struct second {
	struct fs *fs;
	struct current who;
	char request[];
};

static void *second_main(void *arg)
{
	struct second *s = arg;

	pthread_setname_np(pthread_self(), "cairn-second");
	current = s->who;
	current.request = s->request;
	s->fs->wire.answer(s->fs, s->request, current.request_len);
	timed_end(s->fs);
	atomic_fetch_sub(&s->fs->slots.n_offloaded, 1);
	free(s);
	return NULL;
}

/* slots.lock held, so that the thread that asks stays, and its request with it. */
static void begin_again(struct fs *fs, struct asking *a)
{
	struct second *s = malloc(sizeof(*s) + a->who.request_len);

	if (!s || fs->slots.joining) {
		free(s);
		return;
	}
	*s = (struct second){.fs = fs,
			     .who = {.unique = a->who.unique,
				     .resent = a->who.resent,
				     .ticket = a->who.ticket,
				     .slot = a->who.slot,
				     .request_len = a->who.request_len,
				     .begun_ns = a->who.begun_ns,
				     .second = true}};
	memcpy(s->request, a->who.request, a->who.request_len);
	atomic_fetch_add(&fs->slots.n_offloaded, 1);
	a->taken = !thread_detached(second_main, s);
	if (!a->taken) {
		atomic_fetch_sub(&fs->slots.n_offloaded, 1);
		free(s);
	}
}

/* Looks at the questions that have no answer yet. */
static void look_at_asking(struct fs *fs, uint64_t now)
{
	bool late = false, silent = session_is_silent(fs);

	if (!atomic_load(&fs->slots.n_asking))
		return;
	pthread_mutex_lock(&fs->slots.lock);
	for (struct asking *a = fs->slots.asking; a; a = a->next) {
		uint64_t waits = now > a->since ? now - a->since : 0;
		late |= waits > LOOK_AFTER_NS;
		if (silent && a->who.gives && !a->taken)
			begin_again(fs, a);
	}
	pthread_mutex_unlock(&fs->slots.lock);
	if (late && now - atomic_load(&fs->slots.looked_ns) > LOOK_EVERY_NS) {
		atomic_store(&fs->slots.looked_ns, now);
		io_store_look(fs->store);
	}
}

/* A reader that answers for too long is blocked where its operation did not expect it: appoint
 * another one. */
void session_look(struct fs *fs)
{
	uint64_t now = monotonic_ns(), answered = atomic_load(&fs->slots.n_answered);
	/* no answer since the last look: what is asked now is late */
	bool late = atomic_exchange(&fs->slots.answered_seen, answered) == answered &&
		    atomic_load(&fs->slots.n_asking);
	if (late && now < atomic_load(&fs->slots.slow_until))
		atomic_store(&fs->slots.slow_until, now + SLOW_NS);
	look_at_asking(fs, now);
	if (pthread_mutex_trylock(&fs->reading.lock))
		return; /* it is reading, not answering */
	if (fs->reading.reader != NO_READER && now > fs->reading.since &&
	    now - fs->reading.since > STUCK_NS) {
		fs->reading.reader = NO_READER;
		pthread_cond_signal(&fs->reading.cond);
		atomic_store(&fs->slots.slow_until, now + SLOW_NS);
	}
	pthread_mutex_unlock(&fs->reading.lock);
}

void session_join(struct fs *fs)
{
	pthread_mutex_lock(&fs->slots.lock);
	fs->slots.joining = true;
	pthread_mutex_unlock(&fs->slots.lock);
	for (unsigned i = 0; i < N_THREADS; i++)
		pthread_join(fs->slots.thread[i], NULL);
	while (atomic_load(&fs->slots.n_offloaded))
		sleep_ms(10);
}

struct offload {
	struct fs *fs;
	struct current who;
	void (*fn)(void *arg);
	void *arg;
};

static void *offload_main(void *arg)
{
	struct offload o = *(struct offload *)arg;

	free(arg);
	pthread_setname_np(pthread_self(), "cairn-offload");
	current = o.who;
	current.reads = current.slotted = false;
	current.request = NULL; /* that thread reads the next one */
	o.fn(o.arg);
	timed_end(o.fs);
	atomic_fetch_sub(&o.fs->slots.n_offloaded, 1);
	return NULL;
}

void session_offload(struct fs *fs, void (*fn)(void *arg), void *arg)
{
	struct offload *o = malloc(sizeof(*o));

	session_may_block(fs);
	if (o)
		*o = (struct offload){.fs = fs, .who = current, .fn = fn, .arg = arg};
	atomic_fetch_add(&fs->slots.n_offloaded, 1);
	if (!o || thread_detached(offload_main, o)) {
		atomic_fetch_sub(&fs->slots.n_offloaded, 1);
		free(o);
		current.slotted = false;
		fn(arg);
		current.slotted = true;
	} else {
		current.timed = TIMED_NONE; /* that thread counts it */
	}
}

static void release_done(struct fs *fs, unsigned slot)
{
	pthread_mutex_lock(&fs->tickets.lock);
	if (fs->tickets.of_slot[slot]) {
		fs->tickets.of_slot[slot] = 0;
		pthread_cond_broadcast(&fs->tickets.cond);
	}
	pthread_mutex_unlock(&fs->tickets.lock);
}

static void *answer_main(void *arg)
{
	struct slot_arg a = *(struct slot_arg *)arg;
	int n;

	free(arg);
	pthread_setname_np(pthread_self(), "cairn-answer");
	/* faulted in before it is read into: a kill during a page fault of that read would lose the
	 * half-copied request */
	memset(a.buf, 0, REQUEST_MAX);
	while ((n = read_one(a.fs, a.buf, (int)a.slot)) > 0) {
		current.reads = current.slotted = true;
		current.request = a.buf;
		current.request_len = (size_t)n;
		a.fs->wire.answer(a.fs, a.buf, (size_t)n);
		timed_end(a.fs);
		if (current.left) {
			free(a.buf);
			atomic_fetch_sub(&a.fs->slots.n_offloaded, 1);
			return NULL;
		}
		release_done(a.fs, a.slot);
	}
	a.fs->wire.end(a.fs);
	pass_on(a.fs, (int)a.slot);
	free(a.buf);
	return NULL;
}

int session_start(struct fs *fs)
{
	fs->reading.reader = NO_READER;
	for (unsigned i = 0; i < N_THREADS; i++) {
		struct slot_arg *a = slot_arg_new(fs, i);
		if (!a)
			return -ENOMEM;
		if (pthread_create(&fs->slots.thread[i], NULL, answer_main, a)) {
			slot_arg_free(a);
			return -EAGAIN;
		}
	}
	return 0;
}
