/* SPDX-License-Identifier: MIT
 * The threads that answer the kernel. One at a time reads, so that the order in
 * which requests were sent is known: the kernel queues a RELEASE before close(2)
 * returns, hence whatever the same program does next is read after it. Operations
 * that take a place in the order wait for the RELEASEs read before them.
 *
 * The reader answers what is short by itself and goes on reading: waking another
 * thread costs more than most answers. What may take long (see session_may_block)
 * passes the reading on first. */
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

/* A request that comes this soon after the last answer finds the reader awake: a thread that
 * sleeps is woken in 20 to 60 us on a virtual machine, and a create is five requests. */
#define SPIN_NS 60000u
#define SPIN_PAUSES 20	/* about 1 us between two questions */
#define NO_READER (-1)
#define SLOW_NS 10000000000ull	/* so long after it every question to the store is taken for slow */
#define STUCK_NS 100000000u	/* an answer that takes longer should have passed the reading on */

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
			if (current.reads) {	/* never with the ticket lock: the read lock comes first */
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

/* The next request. In a burst it is asked for without sleeping. Read lock held. */
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
			sched_yield();	/* who has work goes first */
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
 * The kernel returns them in no order: those of each bucket of its hash table in turn. Answered
 * as they come, a rename could take its place before a close that had returned before it was
 * called. So they are all read before any is answered (they are at the head of the queue), and
 * then answered in the order in which they were sent, which is that of `unique`; RELEASEs before
 * all others. That is right whatever `unique` tells: their close(2) has returned, and the other
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

/* 0, or -ENOMEM: then the next worker is sent them once more. */
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

/* Reads all that is sent again, up to the first request that is not. No thread answers yet, and
 * the descriptor does not block. */
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
		/* these two have queues of their own, which are read first */
		more = in->unique & WIRE_RESENT || in->opcode == WIRE_FORGET ||
		       in->opcode == WIRE_BATCH_FORGET || in->opcode == WIRE_INTERRUPT;
	}
	free(buf.mem);
	if (!rc && fs->reading.n_resent)
		qsort(fs->reading.resent, fs->reading.n_resent, sizeof(struct resent *), by_sending);
	return rc;
}

/* The next of them; 0: there is none left. Read lock held. */
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

/* Becomes the reader, reads one request, numbers RELEASEs. */
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

/* Never waits for the lock: another may have been made the reader meanwhile (session_look), and he has
 * it until a request comes, which may be never before this one is answered. */
static void pass_on(struct fs *fs, int slot)
{
	while (atomic_load(&fs->reading.reader) == slot) {
		if (pthread_mutex_trylock(&fs->reading.lock)) {
			sched_yield();	/* he who has it looks who is the reader, and lets go */
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

/* A reader that has answered for too long has met something that its operation did not
 * foresee: others go on meanwhile. */
void session_look(struct fs *fs)
{
	uint64_t now = monotonic_ns();
	if (atomic_load(&fs->slots.n_asking) && now < atomic_load(&fs->slots.slow_until))
		atomic_store(&fs->slots.slow_until, now + SLOW_NS);
	if (pthread_mutex_trylock(&fs->reading.lock))
		return;		/* it reads */
	if (fs->reading.reader != NO_READER && now > fs->reading.since && now - fs->reading.since > STUCK_NS) {
		fs->reading.reader = NO_READER;
		pthread_cond_signal(&fs->reading.cond);
		atomic_store(&fs->slots.slow_until, now + SLOW_NS);
	}
	pthread_mutex_unlock(&fs->reading.lock);
}

/* ---- waiting for the store ----
 *
 * Most answers of the store come at once, and cost less than passing the reading on. One that does not was
 * found out by session_look(); for some seconds nobody asks as the reader then, and before all threads wait for
 * the store, one that does leaves its slot to a new thread. */
#define ASKING_MAX (N_THREADS / 2)

static void *answer_main(void *arg);

/* This thread goes on with its request, and another has its slot. Not one whose RELEASE others wait for. */
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
	pthread_mutex_lock(&fs->slots.lock);	/* who joins the threads of all slots must find the last */
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
	/* faulted in before it is read into: a kill in a page fault of that read would cost
	 * the request that was half copied */
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

/* The kernel sends again what the last worker took and did not answer (6.9 and later). */
static void ask_resend(struct fs *fs)
{
	struct wire_out out = {.len = sizeof(out), .error = WIRE_NOTIFY_RESEND};
	if (write(fuse_session_fd(fs->se), &out, sizeof(out)) < 0)
		fs_notice(fs, "this kernel cannot send requests again (before 6.9): calls that were "
			      "under way when the worker died may hang until the mount is aborted");
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
	/* the reader asks before it sleeps */
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
