/* SPDX-License-Identifier: MIT
 *
 * cairn tier serve: answers the worker of a mount with -o tier=, which has neither a network nor
 * the tier's directory: what is there, and fetches checkpoints into the store. The keeper's runner
 * starts it (fs/process/tier.c).
 *
 * This process only reads the socket (io/tier_ask.h), and never waits for the tier or the store: a
 * child does one thing each, says so itself, and exits with 0 when it has. One that does not was
 * killed, as the OOM killer does: the worker is told, and asks again. What readers of a fetch wait
 * for is passed on to its child. How far that is, is in memory of both; that it lives, is seen from
 * outside, by what it reads and writes.
 */
#include "tier_damaged.h"

#include "io/tier_ask.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define FETCHES 4u /* checkpoints at once; others wait */
#define LOOK_MS 250 /* how often it looks how far they are */
#define LOCKED_S 0.5 /* another process fetches this one */

struct work {
	struct work *next;
	pid_t pid; /* 0: it has not begun */
	bool again; /* asked for since it began, maybe after its answer */
	uint64_t bytes, moved; /* came, as was told; read and written */
	char *path; /* of a checkpoint; NULL: the listing */
	char *first; /* of its files, the one that is waited for */
	volatile uint64_t *came; /* bytes; shared with the child */
	int asks[2]; /* a socket for what readers wait for: this end, and the child's */
};

struct serve {
	const char *store, *tier, *host, *mount;
	struct work *work;
	/* The next fetch of a bucket: its child has started its clients, which takes longer than
	 * the requests, and waits for a path. NULL: none yet */
	struct work *ready;
	unsigned fetches; /* that run */
	struct tier_message in; /* too large for a stack of many */
};

/* fd, more: go with it; -1: none. */
static void send_message(const struct tier_message *m, int fd, int more)
{
	const int fds[] = {fd, more};
	const size_t bytes = sizeof(int) * (more < 0 ? 1 : 2);
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(fds))];
	} u = {0};
	struct iovec v = {.iov_base = (void *)m, .iov_len = sizeof(*m)};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};

	if (fd >= 0) {
		struct cmsghdr *c = &u.align;

		h.msg_control = u.room;
		h.msg_controllen = CMSG_SPACE(bytes);
		*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
				      .cmsg_type = SCM_RIGHTS,
				      .cmsg_len = CMSG_LEN(bytes)};
		memcpy(CMSG_DATA(c), fds, bytes);
	}
	/* a message that is lost is asked for again */
	if (sendmsg(TIER_SERVE_FD, &h, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return;
}

static void say(enum tier_ask what, const char *path, int err, const char *why, int fd)
{
	struct tier_message m = {.what = what, .err = err};

	snprintf(m.path, sizeof(m.path), "%s", path ? path : "");
	snprintf(m.why, sizeof(m.why), "%.*s", (int)sizeof(m.why) - 1, why);
	send_message(&m, fd, -1);
}

/* What a child has come to. If its client of S3 was killed (-EPIPE), it was, too. */
static void say_end(enum tier_ask what, const char *path, int err, const char *why, int fd)
{
	say(err == -EPIPE ? TIER_ASK_KILLED : what, path, err, why, fd);
}

/* ---- a listing; in a child --------------------------------------------------------------- */

struct list {
	const struct tier *t;
	const struct follow *own; /* where damaged ones are noted */
	FILE *out;
	struct stat *st; /* of each file of the checkpoint */
	bool damaged; /* the checkpoint is */
	char *before; /* the path of the file before */
};

static int put_entry(struct list *l, struct tier_entry *e, const struct stat *st, const char *path,
		     size_t len)
{
	e->mode = st->st_mode & (S_IFMT | 0777);
	e->uid = st->st_uid;
	e->gid = st->st_gid;
	e->path_bytes = (uint16_t)len;
	if (fwrite(e, sizeof(*e), 1, l->out) != 1 || fwrite(path, 1, len, l->out) != len)
		return -EIO;
	return ftello(l->out) > (off_t)TIER_LIST_MAX - TIER_PATH_MAX ? -EFBIG : 0;
}

/* Mode and owner of what is there; an object, and its directories, have none, and get those that a
 * fetch gives them. What is not there is closed to all: a fetch finds out. */
static void stat_of(const struct list *l, const char *path, mode_t type, struct stat *out)
{
	bool dir = type == S_IFDIR;
	struct stat st;

	*out = (struct stat){.st_mode = type | ((dir ? 0777u : 0666u) & ~l->t->mask),
			     .st_uid = geteuid(),
			     .st_gid = getegid()};
	if (l->t->s3)
		return;
	if (tier_stat(l->t, path, &st) || (st.st_mode & S_IFMT) != type)
		out->st_mode = type;
	else
		*out = st;
}

/* No error of the tier says so. */
static bool is_missing(const struct list *l, const char *path)
{
	struct stat st;
	int err = tier_stat(l->t, path, &st);

	return err == -ENOENT || (!err && !S_ISREG(st.st_mode));
}

static void name_checkpoint(const struct list *l, struct tier_entry *e, const struct manifest *m)
{
	e->checkpoint = 1;
	e->damaged = l->damaged;
	e->has_step = m->has_step;
	e->step = m->step;
	e->format = (uint8_t)manifest_format(m);
}

static int put_dir(struct list *l, const struct manifest *m, const char *path, size_t len)
{
	CLEANUP_FREE char *own = strndup(path, len);
	struct timespec t = manifest_time(m); /* as finish_dir() of a fetch sets it */
	struct tier_entry e = {.mtime_s = t.tv_sec, .mtime_ns = (uint32_t)t.tv_nsec};
	struct stat st;

	if (!own)
		return -ENOMEM;
	stat_of(l, own, S_IFDIR, &st);
	if (len && !strcmp(own, m->path))
		name_checkpoint(l, &e, m);
	return put_entry(l, &e, &st, own, len);
}

/* Those of path that the path before did not have. */
static int put_dirs(struct list *l, const struct manifest *m, const char *path)
{
	int err = 0;

	for (size_t n = 0; !err && path[n]; n++)
		if (path[n] == '/' && (strncmp(path, l->before, n) || l->before[n] != '/'))
			err = put_dir(l, m, path, n);
	return err;
}

static int put_file(struct list *l, const struct manifest *m, const struct tier_file *f)
{
	struct tier_entry e = {.size = f->size,
			       .mtime_s = f->mtime.tv_sec,
			       .mtime_ns = (uint32_t)f->mtime.tv_nsec};
	int err = put_dirs(l, m, f->path);

	if (!strcmp(f->path, m->path))
		name_checkpoint(l, &e, m);
	if (!err)
		err = put_entry(l, &e, &l->st[f - m->v], f->path, strlen(f->path));
	free(l->before);
	l->before = strdup(f->path);
	return err ? err : l->before ? 0 : -ENOMEM;
}

/* Has it all its files, with their sizes? Objects are not asked for: each would be a request. */
static bool lacks_files(struct list *l, const struct manifest *m)
{
	bool lacks = false;

	for (size_t i = 0; i < m->n; i++) {
		struct stat *st = &l->st[i];

		stat_of(l, m->v[i].path, S_IFREG, st);
		if (!l->t->s3)
			lacks |= st->st_nlink ? (uint64_t)st->st_size != m->v[i].size
					      : is_missing(l, m->v[i].path);
	}
	return lacks;
}

/* Was it replaced since it was read? */
static bool is_replaced(const struct list *l, const struct manifest *m)
{
	CLEANUP_MANIFEST struct manifest now = {0};

	return manifest_load(l->t, m->path, TIER_MANIFEST, &now) ||
	       manifest_version(&now) != manifest_version(m);
}

/* In `left` goes what is wrong with the first that is left out. */
static int put_checkpoint(struct list *l, const char *path, struct tier_why *left)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	CLEANUP_FREE struct stat *st = NULL;
	int err = manifest_load(l->t, path, TIER_MANIFEST, &m);

	if (err == -ENOENT)
		return 0; /* replaced just now */
	if (err == -EBADMSG) {
		if (!*left->text)
			tier_told(left, err, "%.400s: its manifest is damaged", path);
		return 0;
	}
	if (!err && !(l->st = st = calloc(m.n + 1, sizeof(*st))))
		err = -ENOMEM;
	l->damaged = !err && lacks_files(l, &m);
	if (l->damaged && is_replaced(l, &m))
		return 0; /* it is in the next listing */
	l->damaged |= !err && damaged_is_noted(l->own, &m);
	free(l->before); /* so that its directories are put: two may have the same above them */
	l->before = strdup("");
	if (!err && !l->before)
		err = -ENOMEM;
	for (size_t i = 0; !err && *path && i < m.n; i++)
		err = put_file(l, &m, &m.v[i]);
	return err;
}

static int put_top(struct list *l)
{
	struct tier_entry e = {0};
	struct stat st;

	stat_of(l, "", S_IFDIR, &st);
	return put_entry(l, &e, &st, "", 0);
}

static int put_all(struct list *l, struct tier_why *left)
{
	struct names names = {0};
	int err = put_top(l);

	if (!err)
		err = manifest_list(l->t, TIER_MANIFEST, &names);
	for (size_t i = 0; !err && i < names.n; i++)
		err = put_checkpoint(l, names.v[i], left);
	names_free(&names);
	return err;
}

/* Is it the tier that this store had before? Otherwise its filesystem is not mounted, and it is not
 * known what is there. f stays open in any case. */
static int check_tier(const struct serve *s, struct follow *f, struct tier_why *w)
{
	CLEANUP_CLOSE int fd = open(s->store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int err = fd < 0 ? tier_told(w, -errno, "%s: %m", s->store) : 0;

	*f = (struct follow){.store = s->store,
			     .tier = s->tier,
			     .for_mount = s->host,
			     .events = -1,
			     .own = -1,
			     .own_host = -1};
	if (!err && (err = follow_open_own(f, fd)))
		tier_told(w, err, "%s: %s", s->store, strerror(-err));
	return err ? err : follow_check_tier(f, w);
}

/* -ENOENT with 1: nothing was pushed to it yet. */
static int open_tier(const struct serve *s, struct tier *t, struct follow *f, struct tier_why *w)
{
	int err = check_tier(s, f, w);

	if (!err)
		err = tier_open_to_read(t, s->tier, w);
	return err == -ENOENT && (t->s3 || t->root >= 0) ? 1 : err;
}

static int list_into(const struct serve *s, FILE *out, struct tier_why *why)
{
	CLEANUP_TIER struct tier t = TIER_NONE;
	struct follow f;
	struct list l = {.t = &t, .own = &f, .out = out};
	int err = open_tier(s, &t, &f, why);

	if (err < 0)
		return err;
	*why->text = '\0';
	err = err ? put_top(&l) : put_all(&l, why);
	free(l.before);
	if (!err && fflush(out))
		err = -errno;
	return err && !*why->text ? tier_told(why, err, "%s: %s", s->tier, tier_strerror(&t, err))
				  : err;
}

static int list(const struct serve *s)
{
	CLEANUP_CLOSE int fd = memfd_create("listing", MFD_CLOEXEC);
	FILE *out = fd < 0 ? NULL : fdopen(dup(fd), "w");
	struct tier_why why = {.text = ""};
	int err = out ? list_into(s, out, &why) : tier_told(&why, -ENOMEM, "no memory");

	if (out)
		fclose(out);
	say_end(TIER_ASK_LISTED, NULL, err, why.text, err ? -1 : fd);
	return 0;
}

/* ---- a fetch; in a child ----------------------------------------------------------------- */

static const char *fetched_path;
static struct follow fetched_own;

/* Noted first: a listing that is asked for when readers know of it has it. */
static void on_damaged(const struct manifest *m, const char *why)
{
	if (damaged_note(&fetched_own, m, why))
		complain("%s: damaged, which could not be noted: %m", m->path); /* found again */
	say(TIER_ASK_DAMAGED, m->path, -EBADMSG, why, -1);
}

static void on_seen(const struct tier_file *t, int fd, int told, uint64_t range_bytes)
{
	struct tier_message m = {.what = TIER_ASK_FILE,
				 .bytes = range_bytes,
				 .checkpoint_bytes = (uint32_t)strlen(fetched_path)};

	snprintf(m.path, sizeof(m.path), "%s", t->path);
	send_message(&m, fd, told);
}

/* f: of tier_fetch_prepare(). */
static int fetch(const struct serve *s, const struct work *w, struct fetch *f)
{
	const struct tier_asked asked = {.first = w->first,
					 .mount = s->mount,
					 .sock = w->asks[1],
					 .bytes = w->came,
					 .seen = on_seen,
					 .damaged = on_damaged};
	struct tier_why why = {.text = ""};
	int err = check_tier(s, &fetched_own, &why);

	fetched_path = w->path;
	while (!err) {
		err = tier_fetch_one(f, s->store, w->path, &asked, &why);
		if (err != -EWOULDBLOCK)
			break;
		sleep_s(LOCKED_S);
		f = tier_fetch_prepare(s->tier);
		err = 0;
	}
	if (!err)
		damaged_forget(&fetched_own, w->path);
	say_end(TIER_ASK_DONE, w->path, err, why.text, -1);
	return 0;
}

/* The path comes by the socket. */
static int fetch_later(const struct serve *s, struct work *w)
{
	struct fetch *f = tier_fetch_prepare(s->tier);
	struct tier_message m;

	if (recv(w->asks[1], &m, sizeof(m), 0) != sizeof(m))
		return 0;
	w->path = strndup(m.path, m.checkpoint_bytes);
	w->first = strdup(m.path);
	return w->path && w->first ? fetch(s, w, f) : 1;
}

/* ---- what is done ------------------------------------------------------------------------ */

static _Noreturn void be_child(const struct serve *s, struct work *w, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1);
	if (w == s->ready)
		_exit(fetch_later(s, w));
	_exit(w->path ? fetch(s, w, tier_fetch_prepare(s->tier)) : list(s));
}

static void begin(struct serve *s, struct work *w)
{
	pid_t self = getpid();

	w->pid = fork();
	if (!w->pid)
		be_child(s, w, self);
	if (w->pid < 0)
		w->pid = 0; /* the next look tries again */
	else if (w->path)
		s->fetches++;
}

static void begin_all(struct serve *s)
{
	for (struct work *w = s->work; w; w = w->next)
		if (!w->pid && (!w->path || s->fetches < FETCHES))
			begin(s, w);
}

static bool is_same_work(const struct work *w, const char *path)
{
	return path ? w->path && !strcmp(w->path, path) : !w->path;
}

static void work_free(struct work *w)
{
	if (w->came)
		munmap((void *)w->came, sizeof(*w->came));
	for (int i = 0; i < 2; i++)
		if (w->asks[i] >= 0)
			close(w->asks[i]);
	free(w->path);
	free(w->first);
	free(w);
}

/* fetch: with what its child shares. NULL: no memory. */
static struct work *work_new(bool fetch)
{
	struct work *w = calloc(1, sizeof(*w));
	void *came = MAP_FAILED;

	if (!w)
		return NULL;
	w->asks[0] = w->asks[1] = -1;
	if (!fetch)
		return w;
	came = mmap(NULL, sizeof(*w->came), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		    0);
	w->came = came == MAP_FAILED ? NULL : came;
	if (w->came && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, w->asks))
		return w;
	work_free(w);
	return NULL;
}

static bool set_paths(struct work *w, const char *path, const char *first)
{
	free(w->path);
	free(w->first);
	w->path = strdup(path);
	w->first = strdup(first);
	return w->path && w->first;
}

/* Was it killed? */
static void reap_ready(struct serve *s)
{
	struct work *w = s->ready;

	if (!w || (w->pid && waitpid(w->pid, NULL, WNOHANG) != w->pid))
		return;
	work_free(w);
	s->ready = NULL;
}

/* The child that is ready gets this to do; NULL: there is none, or it cannot. */
static struct work *take_ready(struct serve *s, const struct tier_message *m, const char *path)
{
	struct work *w;

	reap_ready(s);
	w = s->ready;
	if (!w || !w->pid || s->fetches >= FETCHES || !set_paths(w, path, m->path) ||
	    send(w->asks[0], m, sizeof(*m), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(*m))
		return NULL;
	s->ready = NULL;
	s->fetches++;
	return w;
}

/* path NULL: the listing. What there is no memory for is asked for again. */
static void add(struct serve *s, const char *path, const struct tier_message *m)
{
	struct work **at = &s->work, *w;

	for (; *at; at = &(*at)->next)
		if (is_same_work(*at, path)) {
			(*at)->again = (*at)->pid;
			return;
		}
	w = path ? take_ready(s, m, path) : NULL;
	if (!w && (w = work_new(path != NULL)) && path && !set_paths(w, path, m->path)) {
		work_free(w);
		w = NULL;
	}
	*at = w;
}

/* For the next fetch, when nothing else is done. */
static void prepare(struct serve *s)
{
	if (s->work || s->ready || strncmp(s->tier, "s3://", 5))
		return;
	s->ready = work_new(true);
	if (s->ready)
		begin(s, s->ready);
}

/* For the child of that fetch, now or when it has begun. */
static void pass_on(struct serve *s, const char *path, const struct tier_message *m)
{
	for (struct work *w = s->work; w; w = w->next)
		if (is_same_work(w, path) &&
		    send(w->asks[0], m, sizeof(*m), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			return; /* it is asked for again */
}

static void tell_death(const struct serve *s, const struct work *w)
{
	char why[200];

	snprintf(why, sizeof(why), "%.100s: the process that read it was killed", s->tier);
	say(TIER_ASK_KILLED, w->path, -EIO, why, -1);
}

static void reap(struct serve *s)
{
	for (struct work **at = &s->work, *w; (w = *at);) {
		int status;

		if (!w->pid || waitpid(w->pid, &status, WNOHANG) != w->pid) {
			at = &w->next;
			continue;
		}
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			tell_death(s, w);
		s->fetches -= w->path != NULL;
		w->pid = 0;
		if (w->again) {
			w->again = false;
			continue;
		}
		*at = w->next;
		work_free(w);
	}
}

/* ---- how far a fetch is ------------------------------------------------------------------ */

/* Bytes that the process read and wrote, however. */
static uint64_t moved_by(pid_t pid)
{
	char path[48];
	CLEANUP_FREE char *text = NULL;
	unsigned long long in = 0, out = 0;
	size_t len;

	snprintf(path, sizeof(path), "/proc/%d/io", (int)pid);
	if (!read_small_file(AT_FDCWD, path, 4096, &text, &len))
		sscanf(text, "rchar: %llu wchar: %llu", &in, &out);
	return in + out;
}

static void look(const struct serve *s)
{
	for (struct work *w = s->work; w; w = w->next) {
		struct tier_message m = {.what = TIER_ASK_MOVED};
		uint64_t moved;

		if (!w->path || !w->pid)
			continue;
		m.bytes = *w->came;
		moved = moved_by(w->pid);
		if (m.bytes == w->bytes && moved == w->moved)
			continue;
		w->bytes = m.bytes;
		w->moved = moved;
		snprintf(m.path, sizeof(m.path), "%s", w->path);
		send_message(&m, -1, -1);
	}
}

/* ---- the socket -------------------------------------------------------------------------- */

static void add_fetch(struct serve *s, const struct tier_message *m)
{
	size_t len = strlen(m->path), n = m->checkpoint_bytes;
	CLEANUP_FREE char *path = strndup(m->path, n);

	if (!path || !n || n > len || !fmt_stays_below(m->path, len) || !fmt_stays_below(path, n))
		return;
	if (m->what == TIER_ASK_RANGE)
		pass_on(s, path, m);
	else
		add(s, path, m);
}

/* False: nobody is at the other end any more. */
static bool take(struct serve *s)
{
	struct tier_message *m = &s->in;
	ssize_t n;

	while ((n = recv(TIER_SERVE_FD, m, sizeof(*m), MSG_DONTWAIT)) > 0) {
		if (n != sizeof(*m))
			continue;
		m->path[sizeof(m->path) - 1] = '\0';
		if (m->what == TIER_ASK_LIST)
			add(s, NULL, NULL);
		else if (m->what == TIER_ASK_FETCH || m->what == TIER_ASK_RANGE)
			add_fetch(s, m);
	}
	return n < 0 && (errno == EAGAIN || errno == EINTR);
}

int tier_serve(const char *store, const char *tier, const struct tier_opts *o)
{
	struct serve *s = calloc(1, sizeof(*s));
	struct pollfd p = {.fd = TIER_SERVE_FD, .events = POLLIN};

	if (!s)
		return CAIRN_FAILED;
	*s = (struct serve){.store = store, .tier = tier, .host = o->for_mount, .mount = o->mount};
	signal(SIGPIPE, SIG_IGN);
	fcntl(TIER_SERVE_FD, F_SETFD, FD_CLOEXEC); /* cairn-tier has no use for it */
	if (!strncmp(tier, "s3://", 5))
		umask(0077); /* it is not known who may read an object */
	say(TIER_ASK_HELLO, NULL, 0, "", -1);
	while (take(s)) {
		reap(s);
		reap_ready(s);
		begin_all(s);
		prepare(s);
		look(s);
		poll(&p, 1, s->work ? LOOK_MS : -1);
	}
	free(s);
	return CAIRN_OK; /* the children end with it */
}
