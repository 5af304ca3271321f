/* SPDX-License-Identifier: MIT
 *
 * How checkpoint writers put bytes into a file, and get them out again.
 */
#include <dirent.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "check.h"

static void append(void)
{
	static const size_t sizes[] = { 1, 100, 4095, 4096, 4097, 65536, 1 << 20, 3, (1 << 20) + 1 };
	int fd = OK(open("a", O_WRONLY | O_CREAT | O_TRUNC, 0644));
	off_t at = 0;

	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			write_tag(fd, sizes[i], 1, at);
			at += sizes[i];
			EQ(lseek(fd, 0, SEEK_CUR), at);
		}
	EQ(lseek(fd, 0, SEEK_END), at);
	OK(close(fd));
	same("a", at, 1);
	durable("a");
	same(store("a"), at, 1);
	same("a", at, 1);
}

/* Sizes about the blocks and pages of what lies below: the padded tail must not show. */
static void tails(void)
{
	static const size_t sizes[] = { 0, 1, 511, 512, 513, 4095, 4096, 4097, 2 * MIB - 1, 2 * MIB,
					2 * MIB + 1, 4 * MIB - 4096, 4 * MIB + 511 };
	const int n = sizeof(sizes) / sizeof(*sizes);
	char name[16];

	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "t%d", i);
		put(name, sizes[i], i);
	}
	durable(".");
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "t%d", i);
		same(name, sizes[i], i);
		same(store(name), sizes[i], i);
	}
}

static void append_records(int who)
{
	int fd = OK(open("log", O_WRONLY | O_CREAT | O_APPEND, 0644));
	char rec[100];

	for (int i = 0; i < 100; i++) {
		memset(rec, 'a' + who, sizeof(rec));
		rec[99] = '\n';
		EQ(write(fd, rec, sizeof(rec)), sizeof(rec));
	}
	OK(close(fd));
}

static void o_append(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT | O_APPEND, 0644)), fd2, count[8] = { 0 };
	char rec[100];

	fd2 = OK(open("a", O_WRONLY | O_APPEND));
	write_tag(fd, 100, 1, 0);
	write_tag(fd2, 50, 1, 100);
	OK(lseek(fd, 0, SEEK_SET));
	write_tag(fd, 30, 1, 150);
	OK(ftruncate(fd, 160));
	write_tag(fd2, 40, 1, 160);
	OK(close(fd));
	OK(close(fd2));
	same("a", 200, 1);

	in_processes(8, append_records);
	fd = OK(open("log", O_RDONLY));
	while (OK(read(fd, rec, sizeof(rec)))) {
		TRUE(rec[99] == '\n' && rec[0] >= 'a' && rec[0] < 'i');
		for (int i = 1; i < 99; i++)
			EQ(rec[i], rec[0]);
		count[rec[0] - 'a']++;
	}
	for (int i = 0; i < 8; i++)
		EQ(count[i], 100);
	durable(".");
	same(store("a"), 200, 1);
	EQ(stat_of(store("log")).st_size, 80000);
}

static void o_trunc(void)
{
	int fd;

	put("a", 50000, 1);
	fd = OK(open("a", O_WRONLY | O_TRUNC));
	EQ(stat_of("a").st_size, 0);
	write_tag(fd, 700, 2, 0);
	OK(close(fd));
	same("a", 700, 2);
	durable("a");
	same(store("a"), 700, 2);
	put("a", 90000, 3);			/* over a durable one */
	same("a", 90000, 3);
	durable("a");
	same(store("a"), 90000, 3);
	OK(close(OK(open("a", O_WRONLY | O_TRUNC))));
	durable("a");
	EQ(stat_of(store("a")).st_size, 0);
}

/* safetensors 0.8: the full size first, then the bytes, some never. */
static void size_before_data(void)
{
	const off_t size = 3 * MIB + 17;
	int fd = OK(open("a", O_RDWR | O_CREAT | O_EXCL, 0600));

	OK(ftruncate(fd, size));
	EQ(stat_of("a").st_size, size);
	pwrite_tag(fd, MIB, 1, 2 * MIB);
	pwrite_tag(fd, 1000, 1, 0);
	pwrite_tag(fd, 17, 1, size - 17);
	OK(close(fd));
	for (int i = 0; i < 2; i++) {
		const char *path = i ? store("a") : "a";

		EQ(stat_of(path).st_size, size);
		fd = OK(open(path, O_RDONLY));
		same_fd_range(path, fd, 0, 1000, 1);
		same_fd_range(path, fd, 2 * MIB, MIB, 1);
		same_fd_range(path, fd, size - 17, 17, 1);
		OK(close(fd));
		zeros(path, 1000, 2 * MIB - 1000);
		durable("a");
	}
}

static void truncates(void)
{
	int fd;

	put("a", 10000, 1);
	OK(truncate("a", 5000));
	OK(truncate("a", 9000));
	zeros("a", 5000, 4000);
	durable("a");
	zeros(store("a"), 5000, 4000);
	OK(truncate("a", 3000));		/* a durable, closed file */
	EQ(stat_of("a").st_size, 3000);
	same("a", 3000, 1);
	durable("a");
	same(store("a"), 3000, 1);
	OK(truncate("a", 4000));
	fd = OK(open("a", O_RDWR));
	OK(ftruncate(fd, 100));
	OK(ftruncate(fd, 200));
	ERR(ftruncate(fd, -1), EINVAL);
	OK(close(fd));
	zeros("a", 100, 100);
	fd = OK(open("a", O_RDONLY));
	ERR(ftruncate(fd, 0), EINVAL);
	OK(close(fd));
	ERR(truncate("none", 0), ENOENT);
	durable("a");
	EQ(stat_of(store("a")).st_size, 200);
	zeros(store("a"), 100, 100);
}

static void holes(void)
{
	const off_t at[] = { 0, 64 * MIB, 200 * MIB };
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));

	for (int i = 0; i < 3; i++)
		pwrite_tag(fd, 10000, 1, at[i]);
	TRUE(lseek(fd, 0, SEEK_HOLE) < 64 * MIB);
	TRUE(lseek(fd, 20 * MIB, SEEK_DATA) <= at[1]);
	TRUE(lseek(fd, 20 * MIB, SEEK_DATA) > 30 * MIB);
	ERR(lseek(fd, 300 * MIB, SEEK_DATA), ENXIO);
	TRUE(stat_of("a").st_blocks * 512 <= 16 * MIB);
	OK(close(fd));
	TRUE(stat_of("a").st_blocks * 512 <= 16 * MIB);
	for (int i = 0; i < 2; i++) {
		const char *path = i ? store("a") : "a";

		fd = OK(open(path, O_RDONLY));
		EQ(lseek(fd, 0, SEEK_END), at[2] + 10000);
		for (int k = 0; k < 3; k++)
			same_fd_range(path, fd, at[k], 10000, 1);
		TRUE(lseek(fd, 20 * MIB, SEEK_DATA) > 30 * MIB);
		TRUE(lseek(fd, 0, SEEK_HOLE) < 64 * MIB);
		OK(close(fd));
		zeros(path, 10000, MIB);
		zeros(path, at[1] + 10000, 3 * MIB);
		TRUE(stat_of(path).st_blocks * 512 <= 16 * MIB);
		durable("a");
	}
}

static void seek_finds_what_was_written(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));

	OK(fallocate(fd, 0, 0, 8 * MIB));
	pwrite_tag(fd, 4096, 1, 0);
	pwrite_tag(fd, 4096, 1, 5 * MIB);
	for (int i = 0; i < 2; i++) {		/* while it is written, and from the store or its cache */
		EQ(lseek(fd, 0, SEEK_HOLE), 4096);
		EQ(lseek(fd, 0, SEEK_DATA), 0);
		EQ(lseek(fd, 4096, SEEK_DATA), 5 * MIB);
		EQ(lseek(fd, 5 * MIB + 100, SEEK_DATA), 5 * MIB + 100);
		EQ(lseek(fd, 4096, SEEK_HOLE), 4096);
		EQ(lseek(fd, 5 * MIB + 100, SEEK_HOLE), 5 * MIB + 4096);
		ERR(lseek(fd, 5 * MIB + 4096, SEEK_DATA), ENXIO);
		OK(close(fd));
		durable("a");
		fd = OK(open("a", O_RDONLY));
	}
	OK(close(fd));
}

/* Holes in the store are what was not written, not the huge pages that hold it. A mostly empty file has no checksum:
 * an fsync would take as long as its zeros. */
static void sparse_by_what_was_written(void)
{
	const size_t len = 2048 * MIB;
	char text[64];
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));
	struct stat st;

	OK(ftruncate(fd, len));
	for (int i = 0; i < 7; i++)
		pwrite_tag(fd, 100, i, i * 300 * MIB + 12345);
	OK(fsync(fd));
	pwrite_tag(fd, 10, 8, 300 * MIB + 4096);
	OK(close(fd));
	durable("a");
	fd = OK(open(store("a"), O_RDONLY));
	OK(fstat(fd, &st));
	EQ(st.st_size, len);
	if (st.st_blocks * 512 > 128 * KIB)
		FAIL("7 small writes take %ld KiB", (long)st.st_blocks / 2);
	for (int i = 0; i < 7; i++)
		same_fd_range("a", fd, i * 300 * MIB + 12345, 100, i);
	same_fd_range("a", fd, 300 * MIB + 4096, 10, 8);
	OK(close(fd));
	zeros(store("a"), 300 * MIB + 4106, 2000);
	if (!env.plain)
		ERR(getxattr(store("a"), "user.cairn.checksum", text, sizeof(text)), ENODATA);
}

/* Runs of zeros of many lengths, ends that are not a page's: the store has every byte. */
static void sparse_patterns(void)
{
	const off_t len = 24 * MIB + 1234;
	char *want = calloc(1, len);
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));
	struct stat st;

	OK(ftruncate(fd, len));
	for (off_t at = 6 * MIB, gap = 1; at + 100 < 10 * MIB; gap = gap * 3 / 2 + 100) {
		fill(want + at, 100, 5, at);
		pwrite_tag(fd, 100, 5, at);
		at += 100 + gap;
	}
	fill(want + 16 * MIB + 70 * KIB, 3 * MIB, 5, 16 * MIB + 70 * KIB);
	pwrite_tag(fd, 3 * MIB, 5, 16 * MIB + 70 * KIB);
	fill(want + len - 1, 1, 5, len - 1);
	pwrite_tag(fd, 1, 5, len - 1);
	OK(close(fd));
	durable("a");
	fd = OK(open(store("a"), O_RDONLY));
	OK(fstat(fd, &st));
	EQ(st.st_size, len);
	char *got = malloc(len);
	for (off_t at = 0; at < len;)
		at += OK(pread(fd, got + at, len - at, at));
	for (off_t i = 0; i < len; i++)
		if (got[i] != want[i])
			FAIL("byte %ld is %#x, not %#x", (long)i, (unsigned char)got[i], (unsigned char)want[i]);
	OK(close(fd));
	free(want);
	free(got);
}

static void sparse_1tib(void)
{
	const off_t size = 1L << 40;
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));

	OK(ftruncate(fd, size));
	pwrite_tag(fd, 4096, 1, size / 2);
	pwrite_tag(fd, 8, 1, size - 8);
	OK(close(fd));
	EQ(stat_of("a").st_size, size);
	for (int i = 0; i < 2; i++) {
		const char *path = i ? store("a") : "a";

		fd = OK(open(path, O_RDONLY));
		same_fd_range(path, fd, size / 2, 4096, 1);
		same_fd_range(path, fd, size - 8, 8, 1);
		OK(close(fd));
		zeros(path, size / 4, 4096);
		EQ(stat_of(path).st_size, size);
		TRUE(stat_of(path).st_blocks * 512 <= 16 * MIB);
		durable("a");
	}
	OK(truncate("a", 0));
	OK(unlink("a"));
}

static void *pwriter(void *arg)
{
	long who = (long)arg, fd = who >> 8;

	for (off_t block = who & 7; block < 256; block += 8)
		pwrite_tag(fd, 64 * KIB, 1, block * 64 * KIB);
	return NULL;
}

static void pwrite_threads(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));
	pthread_t t[8];

	for (long i = 0; i < 8; i++)
		EQ(pthread_create(&t[i], NULL, pwriter, (void *)((long)fd << 8 | i)), 0);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	OK(close(fd));
	same("a", 16 * MIB, 1);
	durable("a");
	same(store("a"), 16 * MIB, 1);
}

static void pwrite_process(int who)
{
	int fd = OK(open("a", O_WRONLY | O_CREAT, 0644));

	for (off_t block = who; block < 128; block += 8)
		pwrite_tag(fd, 64 * KIB, 1, block * 64 * KIB);
	OK(close(fd));
}

static void pwrite_processes(void)
{
	in_processes(8, pwrite_process);
	same("a", 8 * MIB, 1);
	durable("a");
	same(store("a"), 8 * MIB, 1);
}

static void vectors(void)
{
	static struct iovec iov[1024];
	size_t at = 0;
	char *buf = malloc(MIB), *back = malloc(MIB);
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));

	fill(buf, MIB, 1, 0);
	for (int i = 0; i < 1024; i++) {
		iov[i].iov_base = buf + at;
		iov[i].iov_len = i * 2 % 1001;
		at += iov[i].iov_len;
	}
	EQ(writev(fd, iov, 1024), at);
	fill(buf, MIB, 1, at);
	EQ(pwritev(fd, iov, 1024, at), at);
	for (size_t i = 0, p = 0; i < 1024; p += iov[i++].iov_len)
		iov[i].iov_base = back + p;
	EQ(preadv(fd, iov, 1024, 0), at);
	EQ(differs(back, at, 1, 0), -1);
	OK(close(fd));
	same("a", 2 * at, 1);
	durable("a");
	same(store("a"), 2 * at, 1);
}

static void copies_in_kernel(void)
{
	off_t in = 0, out = 0;
	int src, dst, fds[2];

	put("src", 5 * MIB + 3, 1);
	src = OK(open("src", O_RDONLY));

	dst = OK(creat("sent", 0644));
	while (OK(sendfile(dst, src, NULL, 8 * MIB)))
		;
	OK(close(dst));
	same("sent", 5 * MIB + 3, 1);

	dst = OK(creat("ranged", 0644));
	for (;;) {
		ssize_t n = copy_file_range(src, &in, dst, &out, 8 * MIB, 0);

		if (n == -1 && (errno == EOPNOTSUPP || errno == EXDEV || errno == EINVAL) && !in)
			break;			/* cp falls back on these */
		if (!OK(n))
			break;
	}
	OK(close(dst));
	same("ranged", in, 1);
	TRUE(in == 0 || in == 5 * MIB + 3);

	OK(pipe(fds));
	dst = OK(creat("spliced", 0644));
	in = 0;
	for (ssize_t n; (n = OK(splice(src, &in, fds[1], NULL, 64 * KIB, 0)));)
		while (n)
			n -= OK(splice(fds[0], NULL, dst, NULL, n, 0));
	OK(close(dst));
	same("spliced", 5 * MIB + 3, 1);
	durable(".");
	same(store("sent"), 5 * MIB + 3, 1);
	same(store("ranged"), out, 1);
	same(store("spliced"), 5 * MIB + 3, 1);
	same("spliced", 5 * MIB + 3, 1);
}

/* From the store file system and to it, as shutil.move of a temporary does. */
static void copies_across(void)
{
	char path[] = "/tmp/cairn-calls-XXXXXX";
	int other = OK(mkstemp(path)), fd;

	OK(unlink(path));
	write_tag(other, 3 * MIB, 1, 0);
	OK(lseek(other, 0, SEEK_SET));
	fd = OK(creat("a", 0644));
	while (OK(sendfile(fd, other, NULL, 8 * MIB)))
		;
	OK(close(fd));
	same("a", 3 * MIB, 1);
	OK(ftruncate(other, 0));
	OK(lseek(other, 0, SEEK_SET));
	durable("a");
	fd = OK(open("a", O_RDONLY));
	while (OK(sendfile(other, fd, NULL, 8 * MIB)))
		;
	same_fd_range("copy out", other, 0, 3 * MIB, 1);
}

static int open_direct(const char *path, int flags)
{
	int fd = open(path, flags | O_DIRECT, 0644);

	if (fd == -1 && errno == EINVAL)
		SKIP("O_DIRECT: EINVAL at open");
	return OK(fd);
}

static void o_direct_aligned(void)
{
	char *buf = aligned_alloc(4096, 4 * MIB);
	int fd = open_direct("a", O_RDWR | O_CREAT | O_TRUNC);

	fill(buf, 4 * MIB, 1, 0);
	EQ(write(fd, buf, 4 * MIB), 4 * MIB);
	memset(buf, 0, 4 * MIB);
	EQ(pread(fd, buf, 4 * MIB, 0), 4 * MIB);
	EQ(differs(buf, 4 * MIB, 1, 0), -1);
	OK(close(fd));
	same("a", 4 * MIB, 1);
	durable("a");
	same(store("a"), 4 * MIB, 1);
	fd = open_direct("a", O_RDONLY);
	EQ(pread(fd, buf, MIB, MIB), MIB);
	EQ(differs(buf, MIB, 1, MIB), -1);
	OK(close(fd));
}

/* torch_checkpointing writes a Python buffer through O_DIRECT as it comes. */
static void o_direct_unaligned(void)
{
	char *buf = malloc(MIB + 64);
	off_t at = 0;
	int fd;

	only_on_cairn();
	fd = open_direct("a", O_RDWR | O_CREAT | O_TRUNC);
	for (int i = 0; i < 20; i++) {
		size_t len = 1 + i * 7777;

		fill(buf + 1 + i, len, 1, at);
		EQ(write(fd, buf + 1 + i, len), len);
		at += len;
	}
	EQ(pread(fd, buf + 3, 1001, 77), 1001);
	EQ(differs(buf + 3, 1001, 1, 77), -1);
	OK(close(fd));
	same("a", at, 1);
	durable("a");
	same(store("a"), at, 1);
	fd = open_direct("a", O_RDONLY);	/* not staged any more, perhaps */
	EQ(pread(fd, buf + 3, 1001, 77), 1001);
	EQ(differs(buf + 3, 1001, 1, 77), -1);
	OK(close(fd));
}

/* tensorstore sets it later. */
static void o_direct_by_fcntl(void)
{
	char *buf = aligned_alloc(4096, MIB);
	int fd;

	put("a", MIB, 1);
	fd = OK(open("a", O_RDONLY));
	if (fcntl(fd, F_SETFL, O_DIRECT) == -1) {
		TRUE(errno == EINVAL);
		SKIP("fcntl O_DIRECT: EINVAL");
	}
	EQ(pread(fd, buf, MIB, 0), MIB);
	EQ(differs(buf, MIB, 1, 0), -1);
	OK(fcntl(fd, F_SETFL, 0));
	EQ(pread(fd, buf + 1, 999, 55), 999);
	EQ(differs(buf + 1, 999, 1, 55), -1);
}

static void uring_pass(struct io_uring *ring, int fd, char *buf, bool writing)
{
	struct io_uring_cqe *cqe;
	int submitted = 0, done = 0;

	while (done < 64) {
		while (submitted < 64 && submitted - done < 16) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
			off_t off = (off_t)submitted * 64 * KIB;

			if (writing)
				io_uring_prep_write(sqe, fd, buf + off, 64 * KIB, off);
			else
				io_uring_prep_read(sqe, fd, buf + off, 64 * KIB, off);
			submitted++;
		}
		TRUE(io_uring_submit(ring) >= 0);
		TRUE(!io_uring_wait_cqe(ring, &cqe));
		EQ(cqe->res, 64 * KIB);
		io_uring_cqe_seen(ring, cqe);
		done++;
	}
}

static void io_uring(void)
{
	char *buf = aligned_alloc(4096, 4 * MIB);
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	int rc = io_uring_queue_init(16, &ring, 0), fd;

	if (rc)
		SKIP("io_uring: %s", strerror(-rc));
	for (int direct = 0; direct < 2; direct++) {
		fd = open(direct ? "direct" : "a",
			  O_RDWR | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0), 0644);
		if (fd == -1 && direct && errno == EINVAL)
			break;
		OK(fd);
		fill(buf, 4 * MIB, 1, 0);
		uring_pass(&ring, fd, buf, true);
		memset(buf, 0, 4 * MIB);
		uring_pass(&ring, fd, buf, false);
		EQ(differs(buf, 4 * MIB, 1, 0), -1);
		io_uring_prep_fsync(io_uring_get_sqe(&ring), fd, 0);
		EQ(io_uring_submit_and_wait(&ring, 1), 1);
		TRUE(!io_uring_wait_cqe(&ring, &cqe));
		EQ(cqe->res, 0);
		io_uring_cqe_seen(&ring, cqe);
		same(store(direct ? "direct" : "a"), 4 * MIB, 1);
		OK(close(fd));
		same(direct ? "direct" : "a", 4 * MIB, 1);
	}
	io_uring_queue_exit(&ring);
}

static void aio_writes(int fd, char *buf, int n)
{
	struct iocb cb[32], *list[32];
	struct io_event ev[32];
	aio_context_t ctx = 0;

	if (syscall(SYS_io_setup, 32, &ctx))
		SKIP("libaio: %s", strerror(errno));
	memset(cb, 0, sizeof(cb));
	for (int i = 0; i < n; i++) {
		cb[i].aio_fildes = fd;
		cb[i].aio_lio_opcode = IOCB_CMD_PWRITE;
		cb[i].aio_buf = (uintptr_t)(buf + i * 128 * KIB);
		cb[i].aio_nbytes = 128 * KIB;
		cb[i].aio_offset = i * 128 * KIB;
		list[i] = &cb[i];
	}
	EQ(syscall(SYS_io_submit, ctx, (long)n, list), n);
	for (int got = 0; got < n;) {
		int k = OK(syscall(SYS_io_getevents, ctx, 1L, (long)n, ev, NULL));

		for (int i = 0; i < k; i++)
			EQ(ev[i].res, 128 * KIB);
		got += k;
	}
	OK(syscall(SYS_io_destroy, ctx));
}

static void libaio(void)
{
	char *buf = aligned_alloc(4096, 4 * MIB);
	int fd;

	fill(buf, 4 * MIB, 1, 0);
	fd = OK(open("a", O_WRONLY | O_CREAT, 0644));
	aio_writes(fd, buf, 32);
	OK(close(fd));
	same("a", 4 * MIB, 1);
	fd = open_direct("b", O_WRONLY | O_CREAT);
	aio_writes(fd, buf, 32);
	OK(close(fd));
	same("b", 4 * MIB, 1);
	durable(".");
	same(store("a"), 4 * MIB, 1);
	same(store("b"), 4 * MIB, 1);
}

/* HF consolidation and zip writers: header, close, reopen r+b, patch, append. */
static void reopen_and_patch(void)
{
	int fd;

	put("a", 8, 9);
	fd = OK(open("a", O_RDWR));
	EQ(lseek(fd, 0, SEEK_END), 8);
	write_tag(fd, 3 * MIB, 1, 8);
	OK(close(fd));
	durable("a");				/* the next reopen finds it durable */
	fd = OK(open("a", O_RDWR));
	same_fd_range("before", fd, 8, 3 * MIB, 1);
	pwrite_tag(fd, 8, 1, 0);
	pwrite_tag(fd, 1000, 1, MIB);
	OK(close(fd));
	same("a", 3 * MIB + 8, 1);
	fd = OK(open("a", O_WRONLY | O_APPEND));
	write_tag(fd, 92, 1, 3 * MIB + 8);
	OK(close(fd));
	same("a", 3 * MIB + 100, 1);
	durable("a");
	same(store("a"), 3 * MIB + 100, 1);
}

static void overwrite_with_reader(void)
{
	ino_t ino;
	int rd, fd;

	only_on_cairn();
	for (int was_durable = 0; was_durable < 2; was_durable++) {
		put("a", 2 * MIB, 1);
		if (was_durable)
			durable("a");
		ino = stat_of("a").st_ino;
		rd = OK(open("a", O_RDONLY));
		same_fd_range("reader", rd, 0, 1000, 1);
		fd = OK(open("a", O_WRONLY | O_TRUNC));
		write_tag(fd, 3 * MIB, 2, 0);
		same_fd_range("reader meanwhile", rd, 0, 2 * MIB, 1);
		OK(close(fd));
		same("a", 3 * MIB, 2);
		same_fd_range("reader after", rd, 0, 2 * MIB, 1);
		EQ(stat_of("a").st_ino, ino);
		durable("a");
		same_fd_range("reader after all", rd, 0, 2 * MIB, 1);
		same(store("a"), 3 * MIB, 2);
		same("a", 3 * MIB, 2);
		EQ(stat_of("a").st_ino, ino);
		OK(close(rd));
		OK(unlink("a"));
	}
}

/* Without O_TRUNC a reader may see the old bytes or the new ones; the store only whole files. */
static void patch_with_reader(void)
{
	int rd, fd;

	only_on_cairn();
	put("a", 2 * MIB, 1);
	durable("a");
	rd = OK(open("a", O_RDONLY));
	same_fd_range("reader", rd, 0, 1000, 1);
	fd = OK(open("a", O_RDWR));
	pwrite_tag(fd, MIB, 2, 0);
	same_fd_range("reader meanwhile", rd, MIB, MIB, 1);
	same(store("a"), 2 * MIB, 1);
	OK(close(fd));
	fd = OK(open("a", O_RDONLY));
	same_fd_range("next open", fd, 0, MIB, 2);
	same_fd_range("next open", fd, MIB, MIB, 1);
	same_fd_range("reader after", rd, MIB, MIB, 1);
	OK(close(fd));
	OK(close(rd));
	durable("a");
	fd = OK(open(store("a"), O_RDONLY));
	same_fd_range("store", fd, 0, MIB, 2);
	same_fd_range("store", fd, MIB, MIB, 1);
}

static void overwrite_in_place(void)
{
	int fd;

	only_on_cairn();
	put("a", 2 * MIB, 1);
	durable("a");
	fd = OK(open("a", O_WRONLY | O_TRUNC));
	for (int i = 0; i < 8; i++) {
		write_tag(fd, MIB, 2, i * MIB);
		same(store("a"), 2 * MIB, 1);
	}
	OK(close(fd));
	for (int i = 0;; i++) {
		/* one open: the name may pass to the new version at any moment */
		struct stat st;
		int in = OK(open(store("a"), O_RDONLY));

		OK(fstat(in, &st));
		same_fd_range("store", in, 0, st.st_size, st.st_size == 2 * MIB ? 1 : 2);
		OK(close(in));
		TRUE(st.st_size == 2 * MIB || st.st_size == 8 * MIB);
		if (st.st_size == 8 * MIB)
			break;
		TRUE(i < 2000 * slow());
		usleep(5000);
	}
	durable("a");
	same("a", 8 * MIB, 2);
}

static void o_sync(void)
{
	static const int how[] = { O_SYNC, O_DSYNC };

	for (int i = 0; i < 2; i++) {
		char name[8] = { 'a' + i };
		int fd = OK(open(name, O_WRONLY | O_CREAT | how[i], 0644));

		write_tag(fd, 100000, 1, 0);
		same(store(name), 100000, 1);	/* no wait: it returned */
		write_tag(fd, 5, 1, 100000);
		same(store(name), 100005, 1);
		OK(close(fd));
		fd = OK(open(name, O_RDWR | how[i]));
		pwrite_tag(fd, 100, 1, 100005);
		same(store(name), 100105, 1);
		OK(close(fd));
		same(name, 100105, 1);
	}
}

/* The bytes, the name and all that came before are in the store when fsync returns. */
static void fsync_is_honest(void)
{
	int fd, dir;

	put("before", 3 * MIB, 2);
	OK(mkdir("d", 0755));
	put("d/moved.tmp", 10, 3);
	OK(rename("d/moved.tmp", "d/moved"));
	fd = OK(open("a", O_WRONLY | O_CREAT, 0644));
	write_tag(fd, MIB + 1, 1, 0);
	OK(fsync(fd));
	same(store("a"), MIB + 1, 1);
	same(store("before"), 3 * MIB, 2);
	same(store("d/moved"), 10, 3);
	TRUE(!exists(store("d/moved.tmp")));
	write_tag(fd, MIB, 1, MIB + 1);
	OK(fdatasync(fd));
	same(store("a"), 2 * MIB + 1, 1);
	write_tag(fd, 100, 1, 2 * MIB + 1);
	OK(close(fd));
	same("a", 2 * MIB + 101, 1);

	put("d/b", 77, 4);
	dir = OK(open("d", O_RDONLY | O_DIRECTORY));
	OK(fsync(dir));
	same(store("d/b"), 77, 4);
	same(store("a"), 2 * MIB + 101, 1);	/* an earlier close */
	OK(unlink("d/b"));
	OK(fdatasync(dir));
	TRUE(!exists(store("d/b")));
	OK(close(dir));
	put("c", 5, 5);
	fd = OK(open("c", O_RDONLY));		/* as some do: fsync of a read descriptor */
	OK(fsync(fd));
	same(store("c"), 5, 5);
	OK(close(fd));
}

static void syncs(void)
{
	int fd;

	put("a", 200000, 1);
	fd = OK(open("a", O_RDWR));
	OK(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
	OK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	OK(readahead(fd, 0, 65536));
	pwrite_tag(fd, 100, 1, 200000);
	OK(close(fd));
	fd = OK(open(".", O_RDONLY | O_DIRECTORY));
	OK(syncfs(fd));
	same("a", 200100, 1);
}

/* Older DCP: fsync before Python's buffer is flushed, then the rest, then the rename. */
static void writes_after_fsync(void)
{
	int fd = OK(open("m.tmp", O_WRONLY | O_CREAT | O_TRUNC, 0644));

	OK(fsync(fd));
	write_tag(fd, 3025, 1, 0);
	OK(close(fd));
	OK(rename("m.tmp", "m"));
	same("m", 3025, 1);
	durable(".");
	same(store("m"), 3025, 1);
	TRUE(!exists(store("m.tmp")));
}

static void preallocation(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644)), rc;

	rc = fallocate(fd, 0, 0, 5 * MIB);
	if (rc && errno == EOPNOTSUPP)
		SKIP("fallocate: EOPNOTSUPP");
	OK(rc);
	EQ(stat_of("a").st_size, 5 * MIB);
	pwrite_tag(fd, 4 * MIB, 1, 0);
	OK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 5 * MIB, 3 * MIB));
	EQ(stat_of("a").st_size, 5 * MIB);
	OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 2 * MIB + 5));
	zeros("a", 4096, 2 * MIB + 5);
	same_fd_range("a", fd, 0, 4096, 1);
	same_fd_range("a", fd, 2 * MIB + 4101, 1000, 1);
	zeros("a", 4 * MIB, MIB);
	OK(posix_fallocate(fd, 6 * MIB, 100));
	EQ(stat_of("a").st_size, 6 * MIB + 100);
	OK(close(fd));
	for (int i = 0; i < 2; i++) {
		const char *path = i ? store("a") : "a";

		EQ(stat_of(path).st_size, 6 * MIB + 100);
		zeros(path, 4096, 2 * MIB + 5);
		zeros(path, 4 * MIB, 2 * MIB + 100);
		durable("a");
	}
}

static void zero_range(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));

	write_tag(fd, 5 * MIB, 1, 0);
	OK(fallocate(fd, FALLOC_FL_ZERO_RANGE, 4097, 3 * MIB));
	EQ(stat_of("a").st_size, 5 * MIB);
	same_fd_range("a", fd, 0, 4097, 1);
	same_fd_range("a", fd, 3 * MIB + 4097, 2 * MIB - 4097, 1);
	OK(fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 5 * MIB - 10, MIB));
	EQ(stat_of("a").st_size, 5 * MIB);
	OK(fallocate(fd, FALLOC_FL_ZERO_RANGE, 5 * MIB, MIB + 3));
	OK(close(fd));
	for (int i = 0; i < 2; i++) {
		const char *path = i ? store("a") : "a";

		EQ(stat_of(path).st_size, 6 * MIB + 3);
		zeros(path, 4097, 3 * MIB);
		zeros(path, 5 * MIB - 10, MIB + 13);
		fd = OK(open(path, O_RDONLY));
		same_fd_range(path, fd, 3 * MIB + 4097, 2 * MIB - 4097 - 10, 1);
		OK(close(fd));
		durable("a");
	}
}

static void big_writes(void)
{
	int fd = OK(creat("a", 0644));

	write_tag(fd, 48 * MIB + 13, 1, 0);
	OK(close(fd));
	same("a", 48 * MIB + 13, 1);
	durable("a");
	same(store("a"), 48 * MIB + 13, 1);
	same("a", 48 * MIB + 13, 1);
	OK(unlink("a"));
}

static void small_things(void)
{
	char buf[64];
	int fd;

	put("a", 10, 1);
	fd = OK(open("a", O_RDONLY));
	EQ(pread(fd, buf, 64, 4), 6);
	EQ(pread(fd, buf, 64, 10), 0);
	EQ(pread(fd, buf, 64, 1L << 40), 0);
	ERR(write(fd, "x", 1), EBADF);
	ERR(lseek(fd, -1, SEEK_SET), EINVAL);
	EQ(lseek(fd, 100, SEEK_SET), 100);
	EQ(read(fd, buf, 64), 0);
	OK(close(fd));
	fd = OK(open("a", O_WRONLY));
	ERR(read(fd, buf, 1), EBADF);
	EQ(write(fd, buf, 0), 0);
	OK(close(fd));
	same("a", 10, 1);
	fd = OK(open("empty", O_RDONLY | O_CREAT, 0644));
	EQ(read(fd, buf, 64), 0);
	OK(close(fd));
	durable(".");
	EQ(stat_of(store("empty")).st_size, 0);
	EQ(stat_of(store("a")).st_size, 10);
}

static void two_writers(void)
{
	int a = OK(open("a", O_RDWR | O_CREAT, 0644)), b = OK(open("a", O_RDWR)), rd;

	pwrite_tag(a, 1000, 1, 0);
	rd = OK(open("a", O_RDONLY));
	pwrite_tag(b, 1000, 1, 1000);
	same_fd_range("b", b, 0, 2000, 1);
	OK(close(a));
	pwrite_tag(b, 1000, 1, 2000);
	same_fd_range("reader", rd, 0, 3000, 1);
	a = OK(open("a", O_WRONLY | O_APPEND));
	OK(close(b));
	write_tag(a, 1000, 1, 3000);
	OK(close(a));
	same_fd_range("reader", rd, 0, 4000, 1);
	OK(close(rd));
	same("a", 4000, 1);
	durable("a");
	same(store("a"), 4000, 1);
}

/* A reader's open must not freeze what the writer still writes. */
static void reader_follows_writer(void)
{
	int fd = OK(creat("a", 0644)), rd = -1;

	for (int i = 0; i < 20; i++) {
		write_tag(fd, 10000, 1, i * 10000);
		if (i % 5 == 0) {
			if (rd != -1)
				OK(close(rd));
			rd = OK(open("a", O_RDONLY));
		}
		same_fd_range("reader", rd, 0, (i + 1) * 10000, 1);
		EQ(lseek(rd, 0, SEEK_END), (i + 1) * 10000);
	}
	OK(close(fd));
	same_fd_range("reader", rd, 0, 200000, 1);
}

static void inherited_descriptor(void)
{
	int fd = OK(creat("a", 0644)), go[2];
	pid_t pid;
	char c;

	OK(pipe(go));
	write_tag(fd, 100, 1, 0);
	pid = OK(fork());
	if (!pid) {
		close(go[1]);
		(void)!read(go[0], &c, 1);	/* until the parent has closed both */
		write_tag(fd, 100, 1, 100);
		_exit(0);
	}
	OK(close(fd));
	close(go[0]);
	close(go[1]);
	OK(waitpid(pid, NULL, 0));
	same("a", 200, 1);
	durable("a");
	same(store("a"), 200, 1);
}

static void many_open(void)
{
	int fd[400];
	char name[16];

	for (int i = 0; i < 400; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		fd[i] = OK(open(name, O_RDWR | O_CREAT, 0644));
		write_tag(fd[i], 100 + i, i, 0);
	}
	for (int i = 0; i < 400; i++)
		same_fd_range("open", fd[i], 0, 100 + i, i);
	for (int i = 399; i >= 0; i--)
		OK(close(fd[i]));
	durable(".");
	for (int i = 0; i < 400; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		same(name, 100 + i, i);
		same(store(name), 100 + i, i);
	}
}

/* The same name again and again: whichever version is last must win. */
static void overwrite_often(void)
{
	for (int i = 0; i < 100; i++)
		put("a", 10000 + i * 10, i);
	same("a", 10990, 99);
	durable("a");
	same(store("a"), 10990, 99);
	for (int i = 0; i < 20; i++) {
		put("a", 100 + i, i);
		durable("a");
		same("a", 100 + i, i);
		same(store("a"), 100 + i, i);
	}
}

static void unlink_and_recreate(void)
{
	for (int i = 0; i < 50; i++) {
		put("a", 5000 + i, i);
		if (i % 10 == 9)
			durable("a");
		OK(unlink("a"));
		ERR(access("a", F_OK), ENOENT);
	}
	put("a", 33, 3);
	durable(".");
	same(store("a"), 33, 3);
}

static void dup_and_seek(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644)), same = OK(dup(fd));

	write_tag(fd, 100, 1, 0);
	EQ(lseek(same, 0, SEEK_CUR), 100);
	write_tag(same, 100, 1, 100);
	OK(close(fd));
	write_tag(same, 100, 1, 200);
	OK(lseek(same, 1000, SEEK_END));
	write_tag(same, 1, 1, 1300);
	OK(close(same));
	zeros("a", 300, 1000);
	EQ(stat_of("a").st_size, 1301);
	durable("a");
	zeros(store("a"), 300, 1000);
}

static void direct_and_buffered(void)
{
	char *buf = aligned_alloc(4096, 64 * KIB);
	int a = open_direct("a", O_RDWR | O_CREAT), b = OK(open("a", O_RDWR));

	for (int i = 0; i < 16; i++) {
		off_t off = i * 64 * KIB;

		fill(buf, 64 * KIB, 1, off);
		EQ(pwrite(i % 2 ? a : b, buf, 64 * KIB, off), 64 * KIB);
		memset(buf, 0, 64 * KIB);
		EQ(pread(i % 2 ? b : a, buf, 64 * KIB, off), 64 * KIB);
		EQ(differs(buf, 64 * KIB, 1, off), -1);
	}
	OK(close(a));
	OK(close(b));
	same("a", MIB, 1);
}

int main(int argc, char **argv)
{
#define C(name) { #name, name }
	static const struct check table[] = {
		C(append), C(tails), C(o_append), C(o_trunc), C(size_before_data), C(truncates),
		C(holes), C(sparse_1tib), C(seek_finds_what_was_written),
		C(sparse_by_what_was_written), C(sparse_patterns),
		C(pwrite_threads), C(pwrite_processes), C(vectors),
		C(copies_in_kernel), C(copies_across), C(o_direct_aligned), C(o_direct_unaligned),
		C(o_direct_by_fcntl), C(io_uring), C(libaio), C(reopen_and_patch),
		C(overwrite_with_reader), C(patch_with_reader), C(overwrite_in_place), C(o_sync),
		C(fsync_is_honest), C(syncs), C(writes_after_fsync), C(preallocation), C(zero_range),
		C(big_writes), C(small_things), C(two_writers), C(reader_follows_writer),
		C(inherited_descriptor), C(many_open), C(overwrite_often), C(unlink_and_recreate),
		C(dup_and_seek), C(direct_and_buffered), { NULL, NULL },
	};

	return check_main(argc, argv, table);
}
