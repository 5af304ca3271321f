/* SPDX-License-Identifier: MIT
 *
 * The checkpoint writers, call by call as they do it, on the mount; a watcher looks at
 * the mount and at the store all the time: it must see old files or new ones, whole.
 *
 * Files describe themselves, so that whoever finds one can tell whether it is whole.
 */
#include <dirent.h>
#include <linux/aio_abi.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "check.h"

#define MAGIC 0x6e72696163747a66u
#define RANKS 4

/* ---- files that describe themselves ------------------------------------------------ */

/* The first bytes of a file; what follows is byte_at(tag, offset). */
struct label {
	uint64_t magic, tag, len;
	uint64_t synced;	/* fsynced with this length before it was whole, or 0 */
};

static char *labelled(uint64_t tag, size_t len, size_t synced)
{
	struct label l = { MAGIC, tag, len, synced };
	char *buf = aligned_alloc(4096, (len + 8191) & ~4095ul);

	fill(buf, len, tag, 0);
	memcpy(buf, &l, sizeof(l));
	return buf;
}

static bool ends_in(const char *name, const char *suffix)
{
	size_t n = strlen(name), m = strlen(suffix);

	return n >= m && !strcmp(name + n - m, suffix);
}

/* Plain text without a label; tracker_is_true looks at it. */
static bool is_tracker(const char *name)
{
	return !strncmp(name, "latest", 6);
}

/* NULL, or what is wrong with these bytes. */
static const char *judge(const char *name, const char *p, size_t len, uint64_t *tag)
{
	struct label l;

	if (!len)	/* an fsync of nothing yet, or a lock that was never written */
		return ends_in(name, ".tmp") || ends_in(name, "__lock") ? NULL : "empty";
	if (len < sizeof(l))
		return "shorter than its label";
	memcpy(&l, p, sizeof(l));
	if (l.magic != MAGIC)
		return "has no label";
	if (len != l.len && len != l.synced)
		return "not its full size";
	if (differs(p + sizeof(l), len - sizeof(l), l.tag, sizeof(l)) != -1)
		return "torn";
	*tag = l.tag;
	return NULL;
}

/* The version of the file, 0 when there is none (any more); fails when it is not whole. */
static uint64_t version_of(int dirfd, const char *path, const char *where)
{
	int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	const char *wrong;
	uint64_t tag = 0;
	struct stat st;
	size_t len = 0;
	ssize_t n;
	char *buf;

	if (fd == -1 && (errno == ENOENT || errno == ELOOP))
		return 0;
	OK(fd);
	OK(fstat(fd, &st));
	buf = malloc(st.st_size + 1);
	while ((n = OK(pread(fd, buf + len, st.st_size + 1 - len, len))) > 0)
		len += n;
	wrong = judge(path, buf, len, &tag);
	if (wrong)
		FAIL("%s: %s is %s (%zu bytes)", where, path, wrong, len);
	free(buf);
	close(fd);
	return tag;
}

/* ---- the watcher ------------------------------------------------------------------------ */

struct watch {
	bool (*in_mount)(const char *name);	/* names that are only ever renamed into place */
	void (*more)(int store);		/* what must hold in the store besides */
	pid_t pid;
	int stop;
};

static bool regular(int dirfd, const struct dirent *e)
{
	struct stat st;

	if (e->d_type != DT_UNKNOWN)
		return e->d_type == DT_REG;
	return !fstatat(dirfd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode);
}

static long look(int parent, const char *name, const char *where, bool (*only)(const char *))
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct dirent *e;
	long seen = 0;
	DIR *d;

	if (fd == -1)
		return 0;
	d = fdopendir(fd);
	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || is_tracker(e->d_name))
			continue;
		if (!regular(fd, e))
			seen += look(fd, e->d_name, where, only);
		else if (!only || only(e->d_name))
			seen += version_of(fd, e->d_name, where) != 0;
	}
	closedir(d);
	return seen;
}

static void watch_loop(const struct watch *w)
{
	int root = OK(open(store("."), O_RDONLY | O_DIRECTORY)), flags;
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	flags = fcntl(w->stop, F_GETFL);
	fcntl(w->stop, F_SETFL, flags | O_NONBLOCK);
	while (read(w->stop, &c, 1) == -1) {
		look(root, ".", "store", NULL);
		if (w->more)
			w->more(root);
		if (w->in_mount)
			look(AT_FDCWD, ".", "mount", w->in_mount);
		usleep(2000);
	}
	_exit(0);
}

static struct watch watching(bool (*in_mount)(const char *), void (*more)(int))
{
	struct watch w = { .in_mount = in_mount, .more = more };
	int fds[2];

	durable(".");		/* there is such a directory in the store */
	OK(pipe2(fds, O_CLOEXEC));
	fflush(stdout);
	w.stop = fds[0];
	w.pid = OK(fork());
	if (!w.pid) {
		close(fds[1]);
		if (env.plain)
			_exit(0);	/* nothing holds files back there */
		watch_loop(&w);
	}
	close(fds[0]);
	w.stop = fds[1];
	return w;
}

static void watched(struct watch *w)
{
	int status;

	close(w->stop);
	OK(waitpid(w->pid, &status, 0));
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		_exit(1);	/* it has said why */
}

/* In the end every file is in the store, the same, and with the checksum the mount tells. */
static void check_file(const char *path)
{
	int here = AT_FDCWD, there = OK(open(store("."), O_RDONLY | O_DIRECTORY));
	uint64_t v = version_of(here, path, "mount");
	char a[64], b[64];
	ssize_t n, m;

	EQ(version_of(there, path, "store"), v);
	EQ(stat_of(store(path)).st_size, stat_of(path).st_size);
	close(there);
	if (env.plain)
		return;
	n = OK(getxattr(path, "user.cairn.checksum", a, sizeof(a)));
	m = OK(getxattr(store(path), "user.cairn.checksum", b, sizeof(b)));
	TRUE(n == 37 && m == n && !memcmp(a, b, n) && !memcmp(a, "xxh3:", 5));
}

static int check_tree(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	int n = 0;

	TRUE(d);
	while ((e = readdir(d))) {
		char sub[PATH_MAX];
		struct stat st;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(sub, sizeof(sub), "%s/%s", path, e->d_name);
		st = stat_of(sub);
		EQ(stat_of(store(sub)).st_mode, st.st_mode);
		if (S_ISDIR(st.st_mode))
			n += check_tree(sub);
		else if (S_ISREG(st.st_mode) && !is_tracker(e->d_name))
			check_file(sub);
		n++;
	}
	closedir(d);
	return n;
}

static int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	TRUE(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

/* In the end: files files and directories, no more in the store than in the mount. */
static void finish(int want)
{
	durable(".");
	EQ(check_tree("."), want);
	EQ(entries(store(".")), entries("."));
}

static void save_plain(const char *path, uint64_t tag, size_t len)
{
	char *buf = labelled(tag, len, 0);
	int fd = OK(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));

	write_all(fd, buf, len);
	OK(close(fd));
	free(buf);
}

static void rmtree(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;

	TRUE(d);
	while ((e = readdir(d))) {
		char sub[PATH_MAX];

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(sub, sizeof(sub), "%s/%s", path, e->d_name);
		if (!regular(dirfd(d), e))
			rmtree(sub);
		else
			OK(unlink(sub));
	}
	closedir(d);
	OK(rmdir(path));
}

/* ---- DCP, torchtitan, Megatron ------------------------------------------------------------- */

static const char *dcp_dir;
static int dcp_version;

static size_t dcp_size(int version, int rank, int n)
{
	return 300000 + (version * 7919 + rank * 104729 + n * 1299709) % 900000;
}

/* FileSystemWriter.write_data: a write(2) per tensor, fsync before the last is flushed. */
static void dcp_rank(int rank)
{
	OK(mkdir(dcp_dir, 0777) == -1 && errno != EEXIST ? -1 : 0);
	OK(access(dcp_dir, W_OK));
	for (int n = 0; n < 2; n++) {
		uint64_t tag = dcp_version * 1000 + rank * 10 + n;
		size_t len = dcp_size(dcp_version, rank, n), synced = len - len / 5, at = 0;
		char path[256], *buf = labelled(tag, len, synced);
		int fd;

		snprintf(path, sizeof(path), "%s/__%d_%d.distcp", dcp_dir, rank, n);
		fd = OK(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
		while (at < synced) {
			size_t tensor = synced - at < 123457 ? synced - at : 123457;

			write_all(fd, buf + at, tensor);
			at += tensor;
		}
		OK(fsync(fd));
		write_all(fd, buf + at, len - at);
		OK(close(fd));
		free(buf);
	}
}

static void dcp_finish(void)
{
	char tmp[256], path[256], *buf = labelled(dcp_version, 3025, 0);
	int fd;

	snprintf(tmp, sizeof(tmp), "%s/.metadata.tmp", dcp_dir);
	snprintf(path, sizeof(path), "%s/.metadata", dcp_dir);
	fd = OK(open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
	OK(fsync(fd));		/* Python has not flushed yet */
	write_all(fd, buf, 3025);
	OK(close(fd));
	free(buf);
	if (exists(path))
		OK(unlink(path));
	OK(rename(tmp, path));
}

static void dcp_save(const char *dir, int version)
{
	dcp_dir = dir;
	dcp_version = version;
	in_processes(RANKS, dcp_rank);
	dcp_finish();
}

static bool is_metadata(const char *name)
{
	return !strcmp(name, ".metadata");
}

/* All shards the metadata speaks of are there, and of its version. */
static bool dcp_complete(int root, const char *dir, uint64_t version)
{
	for (int rank = 0; rank < RANKS; rank++)
		for (int n = 0; n < 2; n++) {
			char path[256];
			struct stat st;

			snprintf(path, sizeof(path), "%s/__%d_%d.distcp", dir, rank, n);
			if (fstatat(root, path, &st, 0) ||
			    version_of(root, path, "store") != version * 1000 + rank * 10 + n ||
			    (size_t)st.st_size != dcp_size(version, rank, n))
				return false;
		}
	return true;
}

static void fresh_is_complete(int root)
{
	char path[64], dir[32];

	for (int v = 1; v <= 4; v++) {
		snprintf(dir, sizeof(dir), "step-%d", v);
		snprintf(path, sizeof(path), "%s/.metadata", dir);
		if (version_of(root, path, "store") && !dcp_complete(root, dir, v))
			FAIL("store: %s stands before its shards", path);
	}
}

static void dcp(void)
{
	struct watch w = watching(is_metadata, fresh_is_complete);

	for (int v = 1; v <= 4; v++) {
		char dir[32];

		snprintf(dir, sizeof(dir), "step-%d", v);
		dcp_save(dir, v);
	}
	durable(".");
	watched(&w);
	finish(4 * (1 + 2 * RANKS + 1));
	TRUE(dcp_complete(AT_FDCWD, "step-4", 4));
}

static void dcp_overwrite(void)
{
	struct watch w = watching(is_metadata, NULL);

	for (int v = 1; v <= 5; v++)
		dcp_save("same", v);
	watched(&w);
	finish(1 + 2 * RANKS + 1);
	EQ(version_of(AT_FDCWD, "same/.metadata", "mount"), 5);
	TRUE(dcp_complete(AT_FDCWD, "same", 5));
}

/* Newest first, again while it changes below us: some checkpoint is always complete. */
static void one_is_complete(int root)
{
	static bool any;

	for (int attempt = 0; attempt < 5; attempt++)
		for (int v = 7; v > 0; v--) {
			char path[64], dir[32];

			snprintf(dir, sizeof(dir), "step-%d", v);
			snprintf(path, sizeof(path), "%s/.metadata", dir);
			if (version_of(root, path, "store") && dcp_complete(root, dir, v)) {
				any = true;
				return;
			}
		}
	if (any)
		FAIL("store: no checkpoint is complete, and one was");
}

static void torchtitan(void)
{
	struct watch w = watching(is_metadata, one_is_complete);
	pid_t purge = 0;

	for (int v = 1; v <= 7; v++) {
		char dir[32];

		snprintf(dir, sizeof(dir), "step-%d", v);
		dcp_save(dir, v);
		if (purge)
			OK(waitpid(purge, NULL, 0));
		purge = OK(fork());		/* while the next one is saved */
		if (!purge) {
			snprintf(dir, sizeof(dir), "step-%d", v - 1);
			if (v > 1)
				rmtree(dir);
			_exit(0);
		}
	}
	OK(waitpid(purge, NULL, 0));
	durable(".");
	watched(&w);
	finish(1 + 2 * RANKS + 1);
	TRUE(dcp_complete(AT_FDCWD, "step-7", 7));
}

static void tracker_is_true(int root)
{
	char text[16] = "", path[64];
	int fd = openat(root, "latest_checkpointed_iteration.txt", O_RDONLY), v;

	if (fd == -1)
		return;
	OK(read(fd, text, 15));
	close(fd);
	v = atoi(text);
	if (v <= 0 || strlen(text) != 1)
		FAIL("store: the tracker says '%s'", text);
	snprintf(path, sizeof(path), "iter_%07d/metadata.json", v);
	TRUE(version_of(root, path, "store") == (uint64_t)v);
	snprintf(path, sizeof(path), "iter_%07d/.metadata", v);
	TRUE(version_of(root, path, "store") == (uint64_t)v);
	snprintf(path, sizeof(path), "iter_%07d", v);
	TRUE(dcp_complete(root, path, v));
}

static void megatron_tracker(int v)
{
	int fd = OK(open("latest_checkpointed_iteration.txt",
			 O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
	char text[16];

	snprintf(text, sizeof(text), "%d", v);
	write_all(fd, text, strlen(text));
	OK(close(fd));
}

static void megatron(void)
{
	struct watch w;
	char path[96], dir[64];

	OK(mkdir("tokenizer", 0755));
	w = watching(is_metadata, tracker_is_true);
	for (int v = 1; v <= 5; v++) {
		snprintf(dir, sizeof(dir), "iter_%07d", v);
		dcp_save(dir, v);
		snprintf(path, sizeof(path), "%s/metadata.json", dir);
		save_plain(path, v, 500);
		megatron_tracker(v);
		save_plain("tokenizer/tokenizer.json", v, 9000);
	}
	durable(".");
	watched(&w);
	tracker_is_true(OK(open(store("."), O_RDONLY | O_DIRECTORY)));
	finish(5 * (1 + 2 * RANKS + 2) + 1 + 2);
}

/* ---- DeepSpeed FastPersist -------------------------------------------------------------------- */

static void aio_write_all(int fd, char *buf, size_t len)
{
	aio_context_t ctx = 0;
	size_t at = 0, done = 0;

	OK(syscall(SYS_io_setup, 8, &ctx));
	while (done < len) {
		struct iocb cb[4] = { 0 }, *list[4];
		struct io_event ev[4];
		long n = 0, got = 0;

		for (; n < 4 && at < len; n++) {
			size_t part = len - at < 256 * 1024 ? len - at : 256 * 1024;

			cb[n] = (struct iocb){ .aio_fildes = fd, .aio_lio_opcode = IOCB_CMD_PWRITE,
					       .aio_buf = (uintptr_t)(buf + at),
					       .aio_nbytes = part, .aio_offset = at };
			list[n] = &cb[n];
			at += part;
		}
		EQ(syscall(SYS_io_submit, ctx, n, list), n);
		while (got < n)
			got += OK(syscall(SYS_io_getevents, ctx, 1L, n - got, ev + got, NULL));
		for (long i = 0; i < n; i++) {
			TRUE((long long)ev[i].res > 0);
			done += ev[i].res;
		}
	}
	OK(syscall(SYS_io_destroy, ctx));
}

/* The aligned part through O_DIRECT, never truncated, the tail through O_APPEND. */
static void fast_persist(int rank)
{
	char path[64], *buf = labelled(dcp_version * 10 + rank, 3 * MIB + 777, 3 * MIB);
	struct statfs fs;
	int fd;

	snprintf(path, sizeof(path), "%s/mp_rank_%02d_model_states.pt", dcp_dir, rank);
	OK(statfs(dcp_dir, &fs));
	fd = open(path, O_WRONLY | O_CREAT | O_DIRECT, 0666);
	if (fd == -1 && errno == EINVAL)
		fd = open(path, O_WRONLY | O_CREAT, 0666);
	aio_write_all(OK(fd), buf, 3 * MIB);
	OK(fsync(fd));
	OK(close(fd));
	fd = OK(open(path, O_WRONLY | O_APPEND));
	write_all(fd, buf + 3 * MIB, 777);
	OK(fsync(fd));
	OK(close(fd));
	free(buf);
}

static void deepspeed(void)
{
	struct watch w = watching(NULL, NULL);

	for (dcp_version = 1; dcp_version <= 3; dcp_version++) {
		char dir[64];
		int fd;

		snprintf(dir, sizeof(dir), "global_step%d", dcp_version);
		dcp_dir = dir;
		OK(mkdir(dir, 0777));
		in_processes(RANKS, fast_persist);
		fd = OK(open("latest", O_WRONLY | O_CREAT | O_TRUNC, 0666));
		write_all(fd, dir, strlen(dir));
		OK(close(fd));
	}
	durable(".");
	watched(&w);
	finish(3 * (1 + RANKS) + 1);
}

/* ---- Orbax on tensorstore ---------------------------------------------------------------------- */

static void same_inode(int fd, const char *path, bool *same)
{
	struct stat a, b;

	OK(fstat(fd, &a));
	*same = !stat(path, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* file_key_value_store: lock, is it still the same file, write, fsync, rename, fsync. */
static void tensorstore_put(const char *key, uint64_t tag)
{
	struct flock lk = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	size_t len = 100000 + tag % 50000, at = 0;
	char lock[128], *buf = labelled(tag, len, 0);
	struct iovec iov[1024];
	int fd, n = 0;
	bool same;

	snprintf(lock, sizeof(lock), "%s.__lock", key);
	for (;;) {
		fd = OK(open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666));
		OK(fcntl(fd, F_OFD_SETLKW, &lk));
		same_inode(fd, lock, &same);
		if (same)
			break;
		OK(close(fd));		/* renamed away by who had it */
	}
	OK(ftruncate(fd, 0));
	for (; at < len; n++) {
		size_t part = len - at < 200 ? len - at : 200;

		iov[n] = (struct iovec){ buf + at, part };
		at += part;
	}
	EQ(writev(fd, iov, n), len);
	OK(fsync(fd));
	OK(rename(lock, key));
	OK(close(fd));
	fd = OK(open("1.orbax-checkpoint-tmp", O_RDONLY | O_DIRECTORY));
	OK(fsync(fd));
	OK(close(fd));
	free(buf);
}

static void tensorstore_writer(int who)
{
	for (int i = 0; i < 12; i++) {
		char key[64];

		snprintf(key, sizeof(key), "1.orbax-checkpoint-tmp/key%d", (i + who) % 6);
		tensorstore_put(key, 1 + who * 1000 + i);
	}
}

static bool is_key(const char *name)
{
	return !strncmp(name, "key", 3) && !ends_in(name, "__lock");
}

static void orbax(void)
{
	struct watch w = watching(is_key, NULL);

	OK(mkdir("1.orbax-checkpoint-tmp", 0777));
	in_processes(6, tensorstore_writer);
	OK(rename("1.orbax-checkpoint-tmp", "1"));
	save_plain("1/commit_success.txt", 1, 100);
	durable(".");
	watched(&w);
	finish(1 + 6 + 1);
}

/* ---- safetensors, HF, torch ---------------------------------------------------------------------- */

static bool is_model(const char *name)
{
	return !strcmp(name, "model.safetensors");
}

/* safetensors 0.8: a temporary in the same directory, its full size, 1 MiB at a time. */
static void safetensors(void)
{
	struct watch w = watching(is_model, NULL);

	for (int v = 1; v <= 8; v++) {
		char tmp[] = ".tmpXXXXXX.tmp";
		size_t len = 2 * MIB + v * 1001, at = 0;
		char *buf = labelled(v, len, 0);
		int fd = OK(mkostemps(tmp, 4, O_CLOEXEC));

		OK(ftruncate(fd, len));
		while (at < len) {
			size_t part = len - at < (size_t)MIB ? len - at : (size_t)MIB;

			write_all(fd, buf + at, part);
			at += part;
		}
		OK(fchmod(fd, 0644));
		OK(close(fd));
		OK(rename(tmp, "model.safetensors"));
		EQ(version_of(AT_FDCWD, "model.safetensors", "mount"), v);
		free(buf);
	}
	durable(".");
	watched(&w);
	EQ(stat_of(store("model.safetensors")).st_mode, S_IFREG | 0644);
	finish(1);
}

/* HF consolidation: header, close, reopen r+b, append; the inputs are mapped. */
static void hf_consolidation(void)
{
	const size_t shard = MIB + 100;
	char *whole = labelled(7, 4 * shard + 200, 200);
	int fd;

	for (int i = 0; i < 4; i++) {
		char path[64];

		snprintf(path, sizeof(path), "shard-%05d-model-00001-of-00001.safetensors", i);
		fd = OK(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
		write_all(fd, whole + 200 + i * shard, shard);
		OK(fsync(fd));
		OK(close(fd));
	}
	fd = OK(open("model.safetensors", O_WRONLY | O_CREAT | O_TRUNC, 0666));
	write_all(fd, whole, 200);
	OK(close(fd));
	for (int i = 0; i < 4; i++) {
		char path[64], *in;

		snprintf(path, sizeof(path), "shard-%05d-model-00001-of-00001.safetensors", i);
		fd = OK(open(path, O_RDONLY));
		in = mmap(NULL, shard, PROT_READ, MAP_PRIVATE, fd, 0);
		TRUE(in != MAP_FAILED);
		OK(close(fd));
		fd = OK(open("model.safetensors", O_RDWR));
		OK(lseek(fd, 200 + i * shard, SEEK_SET));
		write_all(fd, in, shard);
		OK(close(fd));
		OK(munmap(in, shard));
		OK(unlink(path));
	}
	EQ(version_of(AT_FDCWD, "model.safetensors", "mount"), 7);
	save_plain("model.safetensors.index.json", 8, 1000);
	finish(2);
	free(whole);
}

/* torch.save: zip records one after the other, HF Trainer's directory moved at the end. */
static void hf_trainer(void)
{
	struct watch w = watching(NULL, NULL);

	for (int v = 1; v <= 3; v++) {
		char dir[64], path[128];
		size_t len = 8 * MIB + v, at = 0;
		char *buf = labelled(v, len, 0);
		int fd;

		OK(mkdir("tmp-checkpoint", 0777));
		fd = OK(open("tmp-checkpoint/optimizer.pt", O_WRONLY | O_CREAT | O_TRUNC, 0666));
		for (size_t part = 1; at < len; part = part * 3 + 1) {
			size_t n = part < len - at ? part : len - at;

			write_all(fd, buf + at, n);
			at += n;
		}
		OK(close(fd));
		free(buf);
		for (int rank = 0; rank < RANKS; rank++) {
			snprintf(path, sizeof(path), "tmp-checkpoint/rng_state_%d.pth", rank);
			save_plain(path, v * 10 + rank, 15000);
		}
		save_plain("tmp-checkpoint/trainer_state.json", v, 4000);
		snprintf(dir, sizeof(dir), "checkpoint-%d", v * 500);
		OK(rename("tmp-checkpoint", dir));
		if (v > 1) {
			snprintf(dir, sizeof(dir), "checkpoint-%d", v * 500 - 500);
			rmtree(dir);
		}
	}
	durable(".");
	watched(&w);
	finish(1 + 1 + RANKS + 1);
}

/* torch_checkpointing: a Python buffer, at no alignment, through O_DIRECT; no fsync. */
static void torch_checkpointing(void)
{
	const size_t len = 2 * MIB + 12345;
	char *buf = labelled(5, len, 0);
	bool direct = true;
	int fd;

	OK(mkdir("tmp_x", 0777));
	fd = open("tmp_x/0.pt", O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0666);
	if (fd == -1 && errno == EINVAL)
		direct = false;
	if (env.plain && direct) {
		close(fd);
		direct = false;
	}
	if (!direct)
		fd = OK(open("tmp_x/0.pt", O_WRONLY | O_CREAT | O_TRUNC, 0666));
	memmove(buf + 1, buf, len);
	write_all(fd, buf + 1, 1000);
	write_all(fd, buf + 1001, len - 1000);
	OK(close(fd));
	OK(rename("tmp_x", "x"));
	free(buf);
	finish(2);
}

/* ---- Lightning, dlrover ---------------------------------------------------------------------------- */

static void copy_xattrs(int from, int to)
{
	char list[1024], val[1024];
	ssize_t n = flistxattr(from, list, sizeof(list));

	for (ssize_t i = 0; i < n; i += strlen(list + i) + 1) {
		ssize_t len = OK(fgetxattr(from, list + i, val, sizeof(val)));

		if (!strncmp(list + i, "user.", 5))
			OK(fsetxattr(to, list + i, val, len, 0));
	}
}

/* shutil.move from another file system: sendfile, then utimes, chmod and xattrs. */
static void copy2(int from, const char *path)
{
	struct timespec t[2] = { { 1100000000, 111111111 }, { 1200000000, 222222222 } };
	char proc[64];
	int fd = OK(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666));

	OK(lseek(from, 0, SEEK_SET));
	while (OK(sendfile(fd, from, NULL, 8 * MIB)))
		;
	OK(close(fd));
	OK(utimensat(AT_FDCWD, path, t, 0));
	fd = OK(open(path, O_RDONLY));
	copy_xattrs(from, fd);
	OK(close(fd));
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", from);
	OK(chmod(path, stat_of(path).st_mode & 0777));
	OK(chmod(path, 0604));
}

static void lightning(void)
{
	char name[] = "/var/tmp/cairn-writers-XXXXXX", target[64] = "";
	int from = OK(mkstemp(name));
	char *buf = labelled(3, 4 * MIB + 9, 0);

	OK(unlink(name));
	write_all(from, buf, 4 * MIB + 9);
	free(buf);
	if (fsetxattr(from, "user.comment", "by lightning", 12, 0))
		why("note", "no user xattrs on /var/tmp: %s", strerror(errno));
	for (int v = 1; v <= 3; v++) {
		char path[64];

		snprintf(path, sizeof(path), "epoch=%d.ckpt", v);
		copy2(from, path);
		if (v > 1)
			OK(unlink("last.ckpt"));
		OK(symlink(path, "last.ckpt"));
	}
	EQ(version_of(AT_FDCWD, "epoch=3.ckpt", "mount"), 3);
	finish(4);
	EQ(readlink(store("last.ckpt"), target, sizeof(target)), strlen("epoch=3.ckpt"));
	TRUE(!strcmp(target, "epoch=3.ckpt"));
	EQ(stat_of(store("epoch=2.ckpt")).st_mode, S_IFREG | 0604);
	EQ(stat_of(store("epoch=2.ckpt")).st_mtim.tv_sec, 1200000000);
	EQ(stat_of(store("epoch=2.ckpt")).st_mtim.tv_nsec, 222222222);
	EQ(stat_of("epoch=2.ckpt").st_mtim.tv_nsec, 222222222);
	if (fgetxattr(from, "user.comment", target, 64) == 12)
		EQ(getxattr(store("epoch=1.ckpt"), "user.comment", target, 64), 12);
}

static void dlrover_rank(int rank)
{
	char path[128];

	snprintf(path, sizeof(path), "._dlrover_ckpt_stage/%d/rank_%d.pt", dcp_version, rank);
	save_plain(path, dcp_version * 10 + rank, 500000 + rank);
	snprintf(path, sizeof(path), "._dlrover_ckpt_stage/%d.done/%d", dcp_version, rank);
	save_plain(path, rank + 1, 100);
}

/* A stage directory, .done files counted by listdir, then the directory is moved. */
static void dlrover(void)
{
	struct watch w = watching(NULL, NULL);

	OK(mkdir("._dlrover_ckpt_stage", 0777));
	for (dcp_version = 1; dcp_version <= 3; dcp_version++) {
		char stage[64], done[80], final[64];

		snprintf(stage, sizeof(stage), "._dlrover_ckpt_stage/%d", dcp_version);
		snprintf(done, sizeof(done), "%s.done", stage);
		snprintf(final, sizeof(final), "checkpoint-%d", dcp_version);
		OK(mkdir(stage, 0777));
		OK(mkdir(done, 0777));
		in_processes(RANKS, dlrover_rank);
		EQ(entries(done), RANKS);
		EQ(entries(stage), RANKS);
		OK(rename(stage, final));
		rmtree(done);
		save_plain("latest.tmp", dcp_version, 64);
		OK(rename("latest.tmp", "latest_step"));	/* os.replace */
	}
	OK(rmdir("._dlrover_ckpt_stage"));
	durable(".");
	watched(&w);
	finish(3 * (1 + RANKS) + 1);
}

int main(int argc, char **argv)
{
#define C(name) { #name, name }
	static const struct check table[] = {
		C(dcp), C(dcp_overwrite), C(torchtitan), C(megatron), C(deepspeed), C(orbax),
		C(safetensors), C(hf_consolidation), C(hf_trainer), C(torch_checkpointing),
		C(lightning), C(dlrover), { NULL, NULL },
	};

	return check_main(argc, argv, table);
}
