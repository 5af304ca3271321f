/* SPDX-License-Identifier: MIT
 *
 * Many processes in one small tree, all at once: names come and go under each other's
 * hands. Errors of such races are expected, anything else is not; and who reads a file
 * that is only ever renamed into place finds it whole.
 *
 *	storm DIR PROCESSES OPS SEED
 */
#include <dirent.h>
#include <sys/mman.h>

#include "check.h"

static const char *dir;
static long ops;
static uint64_t rng;

static uint64_t rnd(uint64_t n)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z ^ z >> 31) % n;
}

/* What a race with the others may answer. */
static bool lost(const char *what, long rc)
{
	static const int races[] = { ENOENT, EEXIST, ENOTEMPTY, ENOTDIR, EISDIR, EINVAL, ELOOP,
				     EBUSY, EMLINK };

	if (rc != -1)
		return false;
	for (size_t i = 0; i < sizeof(races) / sizeof(*races); i++)
		if (errno == races[i])
			return true;
	FAIL("%s: %s", what, strerror(errno));
}

static const char *some_dir(char path[static 64])
{
	static const char *const dirs[] = { ".", "a", "b", "a/a", "a/b", "b/c" };

	strcpy(path, dirs[rnd(6)]);
	return path;
}

static const char *some_file(char path[static 64], char kind)
{
	char d[64];

	snprintf(path, 64, "%.40s/%c%d", some_dir(d), kind, (int)rnd(6));
	return path;
}

/* The tag and the length stand first. */
static int put_whole(const char *path, int flags, size_t len)
{
	uint64_t head[2] = { rnd(1 << 30), len };
	char *buf = malloc(len);
	int fd;

	fill(buf, len, head[0], 0);
	memcpy(buf, head, sizeof(head));
	fd = open(path, O_WRONLY | O_CREAT | flags, 0644);
	if (!lost("open for writing", fd)) {
		write_all(fd, buf, len);
		if (rnd(20) == 0)
			OK(fsync(fd));
		OK(close(fd));
	}
	free(buf);
	return fd;
}

static void is_whole(const char *path)
{
	int fd = open(path, O_RDONLY);
	uint64_t head[2];
	struct stat st;
	char *buf;

	if (lost("open for reading", fd))
		return;
	OK(fstat(fd, &st));
	if (!S_ISREG(st.st_mode)) {
		close(fd);
		return;
	}
	buf = malloc(st.st_size + 16);
	EQ(pread(fd, buf, st.st_size + 16, 0), st.st_size);
	memcpy(head, buf, sizeof(head));
	TRUE((size_t)st.st_size >= sizeof(head) && head[1] == (size_t)st.st_size);
	EQ(differs(buf + 16, st.st_size - 16, head[0], 16), -1);
	free(buf);
	close(fd);
}

/* w: only renamed into place, whole. x: anything may happen to it. */
static void one_op(int who)
{
	char a[64], b[64], tmp[64];
	struct dirent *e;
	int fd;
	DIR *d;

	switch (rnd(18)) {
	case 0: case 1: case 2:
		snprintf(tmp, sizeof(tmp), "%.40s/t%d", some_dir(a), who);
		if (put_whole(tmp, O_TRUNC, 16 + rnd(rnd(10) ? 20000 : 2000000)) != -1)
			lost("rename", rename(tmp, some_file(b, 'w')));
		break;
	case 3: case 4: case 5:
		is_whole(some_file(a, 'w'));
		break;
	case 6:
		lost("unlink", unlink(some_file(a, 'w')));
		break;
	case 7:
		lost("rename", rename(some_file(a, 'w'), some_file(b, 'w')));
		break;
	case 8:
		lost("link", link(some_file(a, 'w'), some_file(b, 'w')));
		break;
	case 9: case 10:
		put_whole(some_file(a, 'x'), rnd(2) ? O_TRUNC : O_APPEND, 16 + rnd(30000));
		break;
	case 11:
		fd = open(some_file(a, 'x'), O_RDWR);
		if (!lost("open", fd)) {
			pwrite_tag(fd, rnd(5000), 1, rnd(100000));
			OK(ftruncate(fd, rnd(50000)));
			OK(close(fd));
		}
		break;
	case 12:
		lost("unlink", unlink(some_file(a, 'x')));
		break;
	case 13:
		lost("mkdir", mkdir(some_dir(a), 0755));
		break;
	case 14:
		lost("rmdir", rmdir(some_dir(a)));
		break;
	case 15:
		lost("rename", rename(some_dir(a), some_dir(b)));
		break;
	case 16:
		d = opendir(some_dir(a));
		if (!lost("opendir", d ? 0 : -1)) {
			while ((e = readdir(d)))
				if (fd = fstatat(dirfd(d), e->d_name, &(struct stat){ 0 },
						 AT_SYMLINK_NOFOLLOW), fd)
					lost("stat", fd);
			closedir(d);
		}
		break;
	case 17:
		some_file(a, 'x');
		lost("chmod", chmod(a, rnd(2) ? 0644 : 0600));
		lost("setxattr", setxattr(a, "user.x", "1", 1, 0));
		lost("truncate", truncate(a, rnd(3000)));
		break;
	}
}

static void storm(int who)
{
	rng += who * 7919;
	OK(chdir(dir));
	for (long i = 0; i < ops; i++)
		one_op(who);
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "storm DIR PROCESSES OPS SEED\n");
		return 2;
	}
	env.name = "storm";
	dir = argv[1];
	ops = atol(argv[3]);
	rng = strtoull(argv[4], NULL, 0);
	in_processes(atoi(argv[2]) > 64 ? 64 : atoi(argv[2]), storm);
	printf("ok: %s processes, %ld operations each, seed %s\n", argv[2], ops, argv[4]);
	return 0;
}
