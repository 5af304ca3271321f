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
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* From include/uapi/linux/fuse.h; the wire format is the kernel's ABI. */
struct wire_in {
	uint32_t len, opcode;
	uint64_t unique, nodeid;
	uint32_t uid, gid, pid, padding;
};
struct wire_out {
	uint32_t len;
	int32_t error;
	uint64_t unique;
};
#define READ_BUF (2u << 20)
#define WIRE_FORGET 2u
#define WIRE_RELEASE 18u
#define WIRE_INTERRUPT 36u
#define WIRE_BATCH_FORGET 42u
#define WIRE_NOTIFY_RESEND 7
#define WIRE_RESENT (1ull << 63)

/* For this long after its last answer the reader polls: waking a sleeping thread takes 20 to 60 us
 * on a virtual machine, and a create is five requests. */
#define SPIN_NS 60000u
#define SPIN_PAUSES 20	/* about 1 us between two polls */
#define NO_READER (-1)
#define SLOW_NS 10000000000ull	/* for this long after a slow answer of the store, each request to
				 * it is treated as slow */
#define STUCK_NS 100000000u	/* an answer that takes longer should have passed the role on */

_Thread_local struct current current;

struct slot_arg {
	struct fs *fs;
	unsigned slot;
};

void release_barrier(struct fs *fs)
{
	bool wait = true;
	pthread_mutex_lock(&fs->tickets.lock);
	while (wait) {
		wait = false;
		for (unsigned i = 0; i < N_THREADS; i++)
			wait |= i != current.slot && fs->tickets.of_slot[i] && fs->tickets.of_slot[i] <= current.ticket;
		if (wait) {
			/* never with the ticket lock held: the read lock comes first */
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

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

/* Receives the next request; in a burst, by polling. Read lock held. */
static int receive(struct fs *fs, struct fuse_buf *buf)
{
	uint64_t start = monotonic_ns(), spin = fs->reading.in_burst ? SPIN_NS : 0;
	struct pollfd p = {.fd = fuse_session_fd(fs->se), .events = POLLIN};
	int n;

	for (unsigned turn = 1; (n = fuse_session_receive_buf(fs->se, buf)) == -EAGAIN; turn++) {
		if (monotonic_ns() - start >= spin)
			break;
		for (int i = 0; i < SPIN_PAUSES; i++)
			cpu_relax();
		if (turn % 8 == 0)
			sched_yield();	/* let threads with work run first */
	}
	fs->reading.in_burst = n != -EAGAIN;
	while (n == -EAGAIN || n == -EINTR) {
		if (fuse_session_exited(fs->se))
			return 0;
		poll(&p, 1, -1);
		n = fuse_session_receive_buf(fs->se, buf);
		fs->reading.in_burst = monotonic_ns() - start < SPIN_NS;
	}
	return n;
}

/* ---- requests that the kernel sends again ----
 *
 * The kernel resends them bucket by bucket of its hash table, that is, in no useful order. Answered
 * in that order, a rename could take its place before a close that had returned before it was
 * called. So all of them are read before any is answered (they are at the head of the queue), and
 * then answered in the order in which they were sent, which is the order of `unique`, except that
 * RELEASEs come first. That is correct for any `unique`: their close(2) has returned, and the other
 * calls have not. */
struct resent {
	unsigned rank;
	uint64_t unique;
	size_t len;
	char bytes[];
};

static int by_sending(const void *a, const void *b)
{
	const struct resent *x = *(struct resent *const *)a, *y = *(struct resent *const *)b;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->unique < y->unique ? -1 : x->unique > y->unique;
}

/* 0, or -ENOMEM: the kernel resends them to the next worker. */
static int resent_add(struct fs *fs, const struct fuse_buf *buf, size_t len)
{
	const struct wire_in *in = buf->mem;
	struct resent *r = malloc(sizeof(*r) + len);
	void *more = realloc(fs->reading.resent, (fs->reading.n_resent + 1) * sizeof(struct resent *));

	if (more)
		fs->reading.resent = more;
	if (!r || !more) {
		free(r);
		return -ENOMEM;
	}
	r->rank = !(in->unique & WIRE_RESENT) ? 2 : in->opcode == WIRE_RELEASE ? 0 : 1;
	r->unique = in->unique & ~WIRE_RESENT;
	r->len = len;
	memcpy(r->bytes, buf->mem, len);
	fs->reading.resent[fs->reading.n_resent++] = r;
	return 0;
}

/* Reads all resent requests, up to the first that is not one. No thread answers yet, and the
 * descriptor is non-blocking. */
static int resent_gather(struct fs *fs)
{
	struct fuse_buf buf = {.mem = aligned_alloc(4096, READ_BUF), .size = READ_BUF};
	const struct wire_in *in = buf.mem;
	int n, rc = in ? 0 : -ENOMEM;
	bool more = true;

	while (!rc && more) {
		n = fuse_session_receive_buf(fs->se, &buf);
		if (n == -EINTR)
			continue;
		if (n < (int)sizeof(*in))
			break;
		rc = resent_add(fs, &buf, (size_t)n);
		/* these two have queues of their own, which the kernel hands out first */
		more = in->unique & WIRE_RESENT || in->opcode == WIRE_FORGET ||
		       in->opcode == WIRE_BATCH_FORGET || in->opcode == WIRE_INTERRUPT;
	}
	free(buf.mem);
	if (!rc && fs->reading.n_resent)
		qsort(fs->reading.resent, fs->reading.n_resent, sizeof(struct resent *), by_sending);
	return rc;
}

/* Takes the next of them; 0: none is left. Read lock held. */
static int resent_take(struct fs *fs, struct fuse_buf *buf)
{
	if (fs->reading.next_resent == fs->reading.n_resent)
		return 0;
	struct resent *r = fs->reading.resent[fs->reading.next_resent++];
	size_t len = r->len;
	memcpy(buf->mem, r->bytes, len);
	buf->size = len;
	buf->flags = 0;
	free(r);
	if (fs->reading.next_resent == fs->reading.n_resent) {
		free(fs->reading.resent);
		fs->reading.resent = NULL;
		fs->reading.n_resent = fs->reading.next_resent = 0;
	}
	return (int)len;
}

/* Becomes the reader, reads one request, numbers it if it is a RELEASE. */
static int read_one(struct fs *fs, struct fuse_buf *buf, int slot)
{
	pthread_mutex_lock(&fs->reading.lock);
	while (fs->reading.reader != NO_READER && fs->reading.reader != slot)
		pthread_cond_wait(&fs->reading.cond, &fs->reading.lock);
	fs->reading.reader = slot;
	int n = fuse_session_exited(fs->se) ? 0 : resent_take(fs, buf);
	if (!n && !fuse_session_exited(fs->se))
		n = receive(fs, buf);
	if (n >= (int)sizeof(struct wire_in)) {
		const struct wire_in *in = buf->mem;
		pthread_mutex_lock(&fs->tickets.lock);
		if (in->opcode == WIRE_RELEASE)
			fs->tickets.of_slot[slot] = ++fs->tickets.last;
		current = (struct current){.unique = in->unique & ~WIRE_RESENT,
					   .resent = in->unique & WIRE_RESENT,
					   .ticket = fs->tickets.last, .slot = (unsigned)slot};
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
			sched_yield();	/* the holder is only checking who is the reader */
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
	struct pollfd p = {.fd = fuse_session_fd(fs->se), .events = POLLIN};
	if (current.reads && poll(&p, 1, 0) > 0)
		session_may_block(fs);
}

/* A reader that answers for too long is blocked where its operation did not expect it: appoint
 * another one. */
void session_look(struct fs *fs)
{
	uint64_t now = monotonic_ns();
	if (atomic_load(&fs->slots.n_asking) && now < atomic_load(&fs->slots.slow_until))
		atomic_store(&fs->slots.slow_until, now + SLOW_NS);
	if (pthread_mutex_trylock(&fs->reading.lock))
		return;		/* it is reading, not answering */
	if (fs->reading.reader != NO_READER && now > fs->reading.since && now - fs->reading.since > STUCK_NS) {
		fs->reading.reader = NO_READER;
		pthread_cond_signal(&fs->reading.cond);
		atomic_store(&fs->slots.slow_until, now + SLOW_NS);
	}
	pthread_mutex_unlock(&fs->reading.lock);
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
	struct slot_arg *a = malloc(sizeof(*a));
	pthread_t t;

	pthread_mutex_lock(&fs->tickets.lock);
	bool release = fs->tickets.of_slot[current.slot];
	pthread_mutex_unlock(&fs->tickets.lock);
	if (!a || release) {
		free(a);
		return;
	}
	*a = (struct slot_arg){.fs = fs, .slot = current.slot};
	atomic_fetch_add(&fs->slots.n_apart, 1);
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
		atomic_fetch_sub(&fs->slots.n_apart, 1);
		free(a);
	}
}

void session_asks(struct fs *fs)
{
	unsigned asking = atomic_fetch_add(&fs->slots.n_asking, 1);
	if (monotonic_ns() >= atomic_load_explicit(&fs->slots.slow_until, memory_order_relaxed))
		return;
	session_may_block(fs);
	if (asking >= ASKING_MAX && current.slotted)
		leave_slot(fs);
}

void session_asked(struct fs *fs)
{
	atomic_fetch_sub(&fs->slots.n_asking, 1);
}

void session_join(struct fs *fs)
{
	pthread_mutex_lock(&fs->slots.lock);
	fs->slots.joining = true;
	pthread_mutex_unlock(&fs->slots.lock);
	for (unsigned i = 0; i < N_THREADS; i++)
		pthread_join(fs->slots.thread[i], NULL);
	while (atomic_load(&fs->slots.n_apart))
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

struct apart {
	struct fs *fs;
	struct current who;
	void (*fn)(void *arg);
	void *arg;
};

static void *apart_main(void *arg)
{
	struct apart a = *(struct apart *)arg;

	free(arg);
	pthread_setname_np(pthread_self(), "cairn-apart");
	current = a.who;
	current.reads = current.slotted = false;
	a.fn(a.arg);
	atomic_fetch_sub(&a.fs->slots.n_apart, 1);
	return NULL;
}

void session_apart(struct fs *fs, void (*fn)(void *arg), void *arg)
{
	struct apart *a = malloc(sizeof(*a));
	pthread_attr_t detached;
	pthread_t t;

	session_may_block(fs);
	if (a)
		*a = (struct apart){.fs = fs, .who = current, .fn = fn, .arg = arg};
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	atomic_fetch_add(&fs->slots.n_apart, 1);
	if (!a || pthread_create(&t, &detached, apart_main, a)) {
		atomic_fetch_sub(&fs->slots.n_apart, 1);
		free(a);
		current.slotted = false;
		fn(arg);
		current.slotted = true;
	}
	pthread_attr_destroy(&detached);
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
	/* faulted in before it is read into: a kill during a page fault of that read would lose the
	 * half-copied request */
	struct fuse_buf buf = {.mem = aligned_alloc(4096, READ_BUF), .size = READ_BUF};

	free(arg);
	pthread_setname_np(pthread_self(), "cairn-answer");
	if (buf.mem)
		memset(buf.mem, 0, READ_BUF);
	else
		buf.size = 0;
	for (;;) {
		int n = read_one(a.fs, &buf, (int)a.slot);
		if (n <= 0)
			break;
		current.reads = current.slotted = true;
		fuse_session_process_buf(a.fs->se, &buf);
		if (current.left) {
			free(buf.mem);
			atomic_fetch_sub(&a.fs->slots.n_apart, 1);
			return NULL;
		}
		release_done(a.fs, a.slot);
	}
	fuse_session_exit(a.fs->se);
	pass_on(a.fs, (int)a.slot);
	free(buf.mem);
	return NULL;
}

/* Asks the kernel to resend what the last worker read and did not answer (Linux 6.9 and later). */
static void ask_resend(struct fs *fs)
{
	struct wire_out out = {.len = sizeof(out), .error = WIRE_NOTIFY_RESEND};
	if (write(fuse_session_fd(fs->se), &out, sizeof(out)) < 0)
		fs_notice(fs, "this kernel cannot resend requests (before 6.9): calls that were in "
			      "progress when the worker died may hang until the mount is aborted");
}

int session_run(struct fs *fs, const void *init, size_t init_len, bool resend)
{
	struct fuse_buf buf = {.mem = malloc(init_len), .size = init_len};
	if (!buf.mem)
		return -ENOMEM;
	memcpy(buf.mem, init, init_len);
	fuse_session_process_buf(fs->se, &buf);
	free(buf.mem);
	if (resend)
		ask_resend(fs);
	/* the reader polls before it sleeps */
	if (fcntl(fuse_session_fd(fs->se), F_SETFL, O_RDWR | O_NONBLOCK))
		return -errno;
	int rc = resend ? resent_gather(fs) : 0;
	if (rc)
		return rc;
	fs->reading.reader = NO_READER;
	for (unsigned i = 0; i < N_THREADS; i++) {
		struct slot_arg *a = malloc(sizeof(*a));
		if (!a)
			return -ENOMEM;
		*a = (struct slot_arg){.fs = fs, .slot = i};
		if (pthread_create(&fs->slots.thread[i], NULL, answer_main, a))
			return -EAGAIN;
	}
	return 0;
}
