/* SPDX-License-Identifier: MIT
 *
 * A tier that is a bucket: cairn-tier, a process without access to the store, does one operation
 * after the other (tools/tier/wire.h). It lies beside this program.
 */
#include "tier.h"

#include "tools/tier/wire.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct tier_s3 {
	int sock;
	pid_t pid;
	uint64_t rate;
	const volatile sig_atomic_t *stop;
	char prefix[S3_KEY_MAX + 1]; /* "" or with a slash at its end */
	char why[sizeof(((struct s3_reply *)0)->why)];
};

static bool find_program(char out[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 32);
	char *slash;

	out[n < 0 ? 0 : n] = '\0';
	slash = strrchr(out, '/');
	if (!slash)
		return false;
	strcpy(slash, "/cairn-tier");
	return !access(out, X_OK);
}

static int start(struct tier_s3 *s, const char *program, const char *bucket)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -errno;
	s->pid = fork();
	if (!s->pid) {
		if (dup2(pair[1], 0) == 0)
			execl(program, "cairn-tier", bucket, NULL);
		_exit(127);
	}
	close(pair[1]);
	s->sock = pair[0];
	return s->pid < 0 ? -errno : 0;
}

int tier_s3_open(struct tier_s3 **out, const char *name, struct tier_why *w)
{
	const char *bucket = name + strlen("s3://"), *slash = strchrnul(bucket, '/');
	CLEANUP_FREE char *only = strndup(bucket, (size_t)(slash - bucket));
	struct tier_s3 *s = calloc(1, sizeof(*s));
	char program[PATH_MAX];
	size_t len;
	int err;

	*out = s;
	if (!s || !only)
		return tier_told(w, -ENOMEM, "no memory");
	s->sock = -1;
	slash += strspn(slash, "/");
	len = strlen(slash);
	while (len && slash[len - 1] == '/')
		len--;
	if (!*only || len + 1 > S3_KEY_MAX)
		return tier_told(w, -EINVAL, "%s: name it s3://BUCKET/PREFIX", name);
	snprintf(s->prefix, sizeof(s->prefix), "%.*s%s", (int)len, slash, len ? "/" : "");
	if (!find_program(program))
		return tier_told(w, -EOPNOTSUPP,
				 "%s: no S3 client: %s is not there; build it (tools/setup tier), "
				 "or name a directory",
				 name, program);
	err = start(s, program, only);
	return err ? tier_told(w, err, "%s: %s", program, strerror(-err)) : 0;
}

void tier_s3_close(struct tier_s3 *s)
{
	if (s && s->sock >= 0)
		close(s->sock);
	if (s && s->pid > 0)
		waitpid(s->pid, NULL, 0);
	free(s);
}

const char *tier_s3_why(const struct tier_s3 *s)
{
	return s->why;
}

/* Keys are UTF-8. */
static bool is_key(const char *p)
{
	for (const unsigned char *s = (const unsigned char *)p; *s;) {
		int more = *s < 0x80 ? 0 : *s < 0xc2 ? -1 : *s < 0xe0 ? 1 : *s < 0xf0 ? 2 : 3;

		if (more < 0 || *s > 0xf4)
			return false;
		for (s++; more > 0; more--, s++)
			if ((*s & 0xc0) != 0x80)
				return false;
	}
	return true;
}

void tier_s3_limit(struct tier_s3 *s, uint64_t rate, const volatile sig_atomic_t *stop)
{
	s->rate = rate;
	s->stop = stop;
}

/* Until the last reply. */
static int transact(struct tier_s3 *s, const struct s3_request *q, int fd,
		    const struct tier_ranges *r, struct s3_reply *out)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} u = {0};
	struct iovec v = {.iov_base = (void *)q, .iov_len = sizeof(*q)};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	ssize_t n;

	if (fd >= 0) {
		struct cmsghdr *c = &u.align;

		m.msg_control = u.room;
		m.msg_controllen = sizeof(u.room);
		*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
				      .cmsg_type = SCM_RIGHTS,
				      .cmsg_len = CMSG_LEN(sizeof(int))};
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	if (sendmsg(s->sock, &m, MSG_NOSIGNAL) != sizeof(*q))
		return -EPIPE;
	do {
		n = recv(s->sock, out, sizeof(*out), 0);
		if (n < 0 && errno == EINTR && s->stop && *s->stop) {
			kill(s->pid, SIGKILL);
			return -ECANCELED;
		}
		if (n == sizeof(*out) && out->more)
			r->done(r->ctx, out->number, out->sum);
	} while ((n < 0 && errno == EINTR) || (n == sizeof(*out) && out->more));
	return n == sizeof(*out) ? 0 : -EPIPE;
}

int tier_s3_do(struct tier_s3 *s, unsigned op, const char *path, int fd, uint64_t *size, char *sum)
{
	return tier_s3_upload(s, op, path, fd, size, sum, NULL, NULL);
}

int tier_s3_upload(struct tier_s3 *s, unsigned op, const char *path, int fd, uint64_t *size,
		   char *sum, char *upload, const struct tier_ranges *ranges)
{
	struct s3_request q = {.op = op,
			       .size = size ? *size : 0,
			       .off = ranges ? ranges->off : 0,
			       .range_bytes = ranges ? ranges->bytes : 0,
			       .apart = ranges && ranges->apart,
			       .rate = s->rate};
	struct s3_reply r;
	int err, n = snprintf(q.key, sizeof(q.key), "%s%s", s->prefix, path);

	*s->why = '\0';
	if (n > S3_KEY_MAX || !is_key(q.key)) {
		snprintf(s->why, sizeof(s->why), "not a key of S3: %s",
			 n > S3_KEY_MAX ? "longer than 1024 bytes" : "not UTF-8");
		return n > S3_KEY_MAX ? -ENAMETOOLONG : -EILSEQ;
	}
	if (upload && op != S3_BEGIN)
		snprintf(q.upload, sizeof(q.upload), "%s", upload);
	err = transact(s, &q, fd, ranges, &r);
	if (err) {
		snprintf(s->why, sizeof(s->why), "cairn-tier has ended");
		return err;
	}
	if (r.err)
		snprintf(s->why, sizeof(s->why), "%.*s", (int)sizeof(r.why) - 1, r.why);
	if (size)
		*size = r.size;
	if (sum)
		memcpy(sum, r.sum, sizeof(r.sum));
	if (upload && op == S3_BEGIN)
		memcpy(upload, r.upload, sizeof(r.upload));
	return r.err;
}

static bool is_below(const struct tier_s3 *s, const char *key, const char *top)
{
	size_t n = strlen(s->prefix);

	return !strncmp(key, s->prefix, n) && !strncmp(key + n, top, strlen(top));
}

int tier_s3_keys(struct tier_s3 *s, const char *top, tier_key_fn each, void *ctx)
{
	CLEANUP_CLOSE int fd = memfd_create("keys", MFD_CLOEXEC);
	size_t prefix = strlen(s->prefix) + strlen(top);
	uint64_t size = 0;
	int err = fd < 0 ? -errno : tier_s3_do(s, S3_LIST, top, fd, &size, NULL);
	char *keys = err || !size ? NULL : mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);

	if (keys == MAP_FAILED)
		return -errno;
	for (uint64_t at = 0; !err && at < size; at += strlen(keys + at) + 1)
		if (is_below(s, keys + at, top))
			err = each(ctx, keys + at + prefix);
	if (keys)
		munmap(keys, size);
	return err;
}
