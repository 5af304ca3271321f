// SPDX-License-Identifier: MIT
/* load: seeded trainers that write checkpoints in the manners of real frameworks, on a
 * mount (or any directory), recording what they ask and are answered (history.h).
 *
 *   load [-r ranks] [-t ms] [-n steps] [-m max_kib] [-f fsync_pct] [-e] [-S] DIR HIST SEED
 *   load -c crash|stop HIST
 *
 *   -e  tolerate errors: give the file up and go on
 *   -S  fsync promises nothing (fsync=staged)
 *   -c  tell a running load that the crash comes now / to end after this step
 *
 * SIGTERM: kill -9 of all trainers; it returns when they are gone.
 * Exit 0: no trainer saw an error before the crash was announced. */
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "trainer.h"

#define KEEP 2		/* checkpoints kept by rotation */
#define SHARDS 3	/* per rank, at most */
#define BUFFERS 2	/* per rank */

struct run {
	struct tdir kept[KEEP];
	unsigned n_kept;
	struct tdir over;	/* overwritten in place all the time */
	struct tfile over_shard[SHARDS];
	bool over_has_meta;
	struct tfile tracker;
	struct tbuf buffers[BUFFERS];
	uint32_t step;
};

static const struct tdir root_dir;

static uint64_t pick_size(struct rank *r)
{
	uint64_t p = rnd(r) % 100;

	if (p < 45)
		return rnd_in(r, CONTENT_MIN, 20000);
	if (p < 80 || r->max_kb <= 1024)
		return rnd_in(r, 20000, 1 << 20);
	return rnd_in(r, 1 << 20, (uint64_t)r->max_kb << 10);
}

/* ---- one file ------------------------------------------------------------ */

/* create, append, fsync before the tail (older DCP), tail, close, read back */
static void write_file(struct rank *r, const struct tdir *d, const char *name, struct tfile *f)
{
	bool one_version = true;

	if (t_open(r, f, d, name, O_RDWR | O_TRUNC, true) < 0)
		return;
	int err = 0;
	if (chance(r, 90))
		err = t_append(r, f, pick_size(r));
	if (!err && chance(r, r->fsync_pct)) {
		err = t_fsync(r, f);
		if (!err && (f->size < CONTENT_MIN || chance(r, 30))) {
			one_version = f->size == 0;
			err = t_append(r, f, rnd_in(r, CONTENT_MIN, 60000));
		}
	}
	uint32_t ver = f->dirty ? f->ver : f->ver - 1;
	if (!t_close(r, f) && !err && one_version && chance(r, 15))
		t_read(r, d, f, ver);
}

/* O_TRUNC of a published file while readers and its old version stand */
static void overwrite_file(struct rank *r, const struct tdir *d, struct tfile *f)
{
	char name[HIST_NAME];

	t_copy(name, f->name);
	if (t_open(r, f, d, name, O_WRONLY | O_TRUNC, false) < 0)
		return;
	int err = t_append(r, f, pick_size(r));
	if (!err && chance(r, r->fsync_pct))
		t_fsync(r, f);
	t_close(r, f);
}

/* close is not the end: header, close, reopen r+b or O_APPEND, append */
static void append_file(struct rank *r, const struct tdir *d, struct tfile *f)
{
	char name[HIST_NAME];

	if (f->broken) {
		overwrite_file(r, d, f);
		return;
	}
	t_copy(name, f->name);
	if (t_open(r, f, d, name, O_RDWR | (chance(r, 50) ? O_APPEND : 0), false) < 0)
		return;
	int err = t_append(r, f, pick_size(r));
	if (!err && chance(r, r->fsync_pct))
		t_fsync(r, f);
	t_close(r, f);
}

/* safetensors 0.8: temporary name, ftruncate to full size, fill, rename */
static void safetensors_file(struct rank *r, const struct tdir *d, const char *name)
{
	struct tfile f;
	char tmp[HIST_NAME];
	uint64_t size = pick_size(r), half = size / 2;

	snprintf(tmp, sizeof(tmp), ".tmp%.30s", name);
	if (t_open(r, &f, d, tmp, O_RDWR | O_EXCL, true) < 0)
		return;
	int err = t_truncate(r, &f, size);
	for (uint64_t off = half; !err && off < size; off += IO_MAX)
		err = t_write(r, &f, off, size - off < IO_MAX ? size - off : IO_MAX);
	for (uint64_t off = 0; !err && off < half; off += IO_MAX)
		err = t_write(r, &f, off, half - off < IO_MAX ? half - off : IO_MAX);
	if (!err && chance(r, r->fsync_pct))
		err = t_fsync(r, &f);
	if (!t_close(r, &f) && !err)
		t_rename(r, d, tmp, d, name);
}

/* torch.from_file(shared=True): map, close, go on writing */
static void mapped_file(struct rank *r, const struct tdir *d, const char *name)
{
	struct tfile f;
	uint64_t size = rnd_in(r, 4096, 400000), half = size / 2;

	if (t_open(r, &f, d, name, O_RDWR, true) < 0)
		return;
	if (t_truncate(r, &f, size)) {
		t_close(r, &f);
		return;
	}
	char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
	if (map == MAP_FAILED && !atomic_load(&r->h.head->crash) && !r->tolerant)
		t_say(r, "mmap", name, strerror(errno));
	if (map == MAP_FAILED) {
		t_close(r, &f);
		return;
	}
	f.mapped = true;
	t_map_write(r, &f, map, 0, size, 0);
	t_close(r, &f);
	usleep((useconds_t)rnd_in(r, 0, 20000));
	t_map_write(r, &f, map, half, size, HF_MAPPED);
}

/* DeepSpeed FastPersist: O_DIRECT body at offsets, O_APPEND tail */
static void direct_file(struct rank *r, const struct tdir *d, const char *name)
{
	struct tfile f;
	uint64_t blocks = rnd_in(r, 1, 300);

	if (t_open(r, &f, d, name, O_WRONLY | O_DIRECT, true) < 0)
		return;
	int err = 0;
	for (uint64_t b = 0; b < blocks && !err; b += 64) {
		uint64_t n = blocks - b < 64 ? blocks - b : 64;

		err = t_write(r, &f, b * 4096, n * 4096);
	}
	if (!t_close(r, &f) && !err)
		append_file(r, d, &f);
}

/* Orbax: renamed while open; the close comes after it */
static void rename_open(struct rank *r, const struct tdir *d, const char *name)
{
	struct tfile f;
	char tmp[HIST_NAME];

	snprintf(tmp, sizeof(tmp), "%.30s.part", name);
	if (t_open(r, &f, d, tmp, O_RDWR, true) < 0)
		return;
	int err = t_append(r, &f, pick_size(r));
	if (!err && chance(r, r->fsync_pct))
		err = t_fsync(r, &f);
	if (!err)
		err = t_rename(r, d, tmp, d, name);
	if (!err && chance(r, 50))
		t_append(r, &f, rnd_in(r, CONTENT_MIN, 100000));
	t_close(r, &f);
}

/* unlinked while open, and closed and unlinked at once: never worth a store write */
static void short_lived(struct rank *r, const struct tdir *d, const char *name)
{
	struct tfile f;
	bool open_then = chance(r, 50);

	if (t_open(r, &f, d, name, O_RDWR, true) < 0)
		return;
	t_append(r, &f, pick_size(r));
	if (open_then) {
		t_unlink(r, d, name);
		t_write(r, &f, 0, 100);
		t_close(r, &f);
	} else {
		t_close(r, &f);
		t_unlink(r, d, name);
	}
}

/* libcairn's commit: linked, or linked to another name and renamed over the file that is
 * there; and what others do with it while its bytes are the client's. 0, or -errno: no buffer
 * is to be had. */
static int lent_file(struct rank *r, struct tbuf *b, const struct tdir *d, const char *name, bool over)
{
	struct tfile f;
	char as[HIST_NAME];
	int err = r->no_buffers ? -EOPNOTSUPP : t_buffer_have(r, b);

	if (err)
		return err;
	snprintf(as, sizeof(as), "%s%.30s", over ? ".new" : "", name);
	if (t_buffer_commit(r, b, d, as, rnd_in(r, CONTENT_MIN, BUFFER_SIZE), &f))
		return 0;
	if (chance(r, r->fsync_pct))
		t_buffer_fsync(r, b, &f);
	switch (rnd(r) % 10) {
	case 0: t_read(r, d, &f, f.ver); break;
	case 1: append_file(r, d, &f); break;
	case 2: overwrite_file(r, d, &f); break;
	case 3: t_buffer_drop(r, b); break;
	case 4: over = over && t_unlink(r, d, as); break;
	default: break;
	}
	if (over)
		t_rename(r, d, as, d, name);
	return 0;
}

/* ---- removing ------------------------------------------------------------ */

static uint32_t dir_number(const char *name)
{
	const char *dash = strrchr(name, '-');

	return dash ? (uint32_t)strtoul(dash + 1, NULL, 10) : 0;
}

static void remove_tree(struct rank *r, const struct tdir *d, bool mine_only);

static void remove_entry(struct rank *r, const struct tdir *d, const struct dirent *e)
{
	struct tdir sub = { .id = dir_number(e->d_name) };
	char path[PATH_CAP];
	struct stat st;

	t_path(r, d, e->d_name, path);
	if (lstat(path, &st)) {
		if (atomic_load(&r->h.head->crash))
			t_leave();
		if (!r->tolerant)
			t_say(r, "lstat", path, strerror(errno));
		return;
	}
	if (!S_ISDIR(st.st_mode)) {
		t_unlink(r, d, e->d_name);
		return;
	}
	snprintf(sub.path, sizeof(sub.path), "%.180s/%.39s", d->path, e->d_name);
	remove_tree(r, &sub, false);
	t_rmdir(r, d, e->d_name);
}

/* As rmtree: what readdir finds. Several ranks share a directory by name. */
static void remove_tree(struct rank *r, const struct tdir *d, bool mine_only)
{
	char path[PATH_CAP];
	struct dirent *e;

	t_path(r, d, ".", path);
	DIR *dp = opendir(path);
	if (!dp) {
		if (!atomic_load(&r->h.head->crash) && !r->tolerant)
			t_say(r, "opendir", path, strerror(errno));
		return;
	}
	while ((e = readdir(dp))) {
		uint64_t sum = 0;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		for (const char *c = e->d_name; *c; c++)
			sum = mix64(sum ^ (uint64_t)(unsigned char)*c);
		if (!mine_only || sum % r->h.head->ranks == r->id)
			remove_entry(r, d, e);
	}
	closedir(dp);
}

static void rotate(struct rank *r, struct run *u, const struct tdir *made, bool together)
{
	if (u->n_kept == KEEP) {
		struct tdir old = u->kept[0];

		if (together || !r->id)
			remove_tree(r, &old, together);
		if (together)
			t_barrier(r);
		if (!r->id)
			t_rmdir(r, &root_dir, old.path);
		memmove(u->kept, u->kept + 1, sizeof(u->kept[0]) * (KEEP - 1));
		u->n_kept--;
	}
	u->kept[u->n_kept++] = *made;
}

/* ---- manners ------------------------------------------------------------- */

/* Rank 0 makes the directory of a step; all know it afterwards. */
static bool step_dir(struct rank *r, const char *prefix, struct tdir *d)
{
	struct hist_head *hd = r->h.head;

	if (!r->id) {
		int err = t_mkdir(r, &root_dir, prefix, d);

		atomic_store(&hd->dir_now, err < 0 ? 0 : d->id);
	}
	t_barrier(r);
	d->id = atomic_load(&hd->dir_now);
	snprintf(d->path, sizeof(d->path), "%s-%u", prefix, d->id);
	return d->id != 0;
}

static void commit_metadata(struct rank *r, const struct tdir *d, bool unlink_old)
{
	struct tfile f;

	if (t_open(r, &f, d, ".metadata.tmp", O_RDWR | O_TRUNC, true) < 0)
		return;
	int err = t_append(r, &f, rnd_in(r, CONTENT_MIN, 30000));
	if (!err && chance(r, r->fsync_pct))
		err = t_fsync(r, &f);
	if (t_close(r, &f) || err)
		return;
	if (unlink_old)
		t_unlink(r, d, ".metadata");
	t_rename(r, d, ".metadata.tmp", d, ".metadata");
	if (chance(r, r->fsync_pct / 2))
		t_dirsync(r, d);
}

static void write_tracker(struct rank *r, struct run *u)
{
	if (!u->tracker.fid)
		t_open(r, &u->tracker, &root_dir, "latest", O_WRONLY | O_TRUNC, true);
	else
		t_open(r, &u->tracker, &root_dir, "latest", O_WRONLY | O_TRUNC, false);
	if (u->tracker.fd < 0)
		return;
	t_write(r, &u->tracker, 0, rnd_in(r, CONTENT_MIN, 64));
	t_close(r, &u->tracker);
}

static void link_last(struct rank *r, uint32_t num)
{
	if (!t_symlink(r, &root_dir, "last.tmp", num))
		t_rename(r, &root_dir, "last.tmp", &root_dir, "last.ckpt");
}

/* DCP, torchtitan, Megatron: shards, barrier, .metadata, tracker */
static void dcp_step(struct rank *r, struct run *u)
{
	struct tdir d = { 0 };
	struct tfile f;
	char name[HIST_NAME];

	if (!step_dir(r, "step", &d))
		return;
	for (unsigned i = 0, n = (unsigned)rnd_in(r, 1, SHARDS); i < n; i++) {
		snprintf(name, sizeof(name), "__%u_%u.distcp", r->id, i);
		write_file(r, &d, name, &f);
	}
	t_barrier(r);
	if (!r->id) {
		commit_metadata(r, &d, false);
		if (chance(r, 50))
			write_tracker(r, u);
	}
	rotate(r, u, &d, u->step & 1);
}

/* DCP's default: the same directory again, shards first, .metadata unlinked late */
static void overwrite_step(struct rank *r, struct run *u)
{
	char name[HIST_NAME];

	if (!u->over.id && !step_dir(r, "over", &u->over))
		return;
	for (unsigned i = 0; i < SHARDS; i++) {
		struct tfile *f = &u->over_shard[i];

		snprintf(name, sizeof(name), "__%u_%u.distcp", r->id, i);
		if (!f->fid)
			write_file(r, &u->over, name, f);
		else if (chance(r, 70))
			overwrite_file(r, &u->over, f);
		else
			append_file(r, &u->over, f);
	}
	t_barrier(r);
	if (!r->id)
		commit_metadata(r, &u->over, u->over_has_meta && chance(r, 70));
	u->over_has_meta = true;
}

/* Orbax, torch_checkpointing: a directory renamed, some files still open in it */
static void dir_rename_step(struct rank *r, struct run *u)
{
	struct tdir d = { 0 }, to;
	struct tfile f, late = { .fd = -1 };
	char name[HIST_NAME];

	if (!step_dir(r, "tmp-step", &d))
		return;
	to = d;
	snprintf(to.path, sizeof(to.path), "step-%u", d.id);
	for (unsigned i = 0, n = (unsigned)rnd_in(r, 1, SHARDS); i < n; i++) {
		snprintf(name, sizeof(name), "array-%u.%u", r->id, i);
		f.fd = 0;
		if (chance(r, 70))
			write_file(r, &d, name, &f);
		if (f.fd >= 0 || chance(r, 30))	/* sometimes over an existing file */
			rename_open(r, &d, name);
	}
	snprintf(name, sizeof(name), "late-%u", r->id);
	if (r->id && chance(r, 40) && !(t_open(r, &late, &d, name, O_RDWR, true) < 0))
		t_append(r, &late, pick_size(r));
	t_barrier(r);
	if (!r->id)
		t_rename(r, &root_dir, d.path, &root_dir, to.path);
	if (late.fd >= 0) {	/* at the same time as the rename */
		t_append(r, &late, 5000);
		t_close(r, &late);
	}
	t_barrier(r);
	if (!r->id && chance(r, r->fsync_pct))
		t_dirsync(r, &root_dir);
	rotate(r, u, &to, u->step & 1);
}

/* HF: safetensors, consolidation, trainer_state.json last, the index without rename */
static void hf_step(struct rank *r, struct run *u)
{
	struct tdir d = { 0 };
	struct tfile f;
	char name[HIST_NAME];

	if (!step_dir(r, "checkpoint", &d))
		return;
	snprintf(name, sizeof(name), "shard-%u.safetensors", r->id);
	safetensors_file(r, &d, name);
	snprintf(name, sizeof(name), "model-%u.safetensors", r->id);
	write_file(r, &d, name, &f);
	if (f.fd < 0 && chance(r, 60))
		append_file(r, &d, &f);
	snprintf(name, sizeof(name), "rng_state_%u.pth", r->id);
	mapped_file(r, &d, name);
	t_barrier(r);
	if (!r->id)
		write_file(r, &d, "trainer_state.json", &f);
	rotate(r, u, &d, u->step & 1);
}

static void deepspeed_step(struct rank *r, struct run *u)
{
	struct tdir d = { 0 };
	char name[HIST_NAME];

	if (!step_dir(r, "global_step", &d))
		return;
	snprintf(name, sizeof(name), "zero_%u.pt", r->id);
	direct_file(r, &d, name);
	snprintf(name, sizeof(name), "cache_%u.pt", r->id);
	short_lived(r, &d, name);
	t_barrier(r);
	if (!r->id) {
		write_tracker(r, u);
		link_last(r, d.id);
	}
	rotate(r, u, &d, u->step & 1);
}

/* Names of files written into a subdirectory, moved, linked and marked. */
static void churn_file(struct rank *r, const struct tdir *d, const struct tdir *sub, unsigned i)
{
	struct tfile f;
	char name[HIST_NAME], name2[HIST_NAME];

	snprintf(name, sizeof(name), "s%u-%u.bin", r->id, i);
	snprintf(name2, sizeof(name2), "t%u-%u.bin", r->id, i);
	if (t_open(r, &f, sub, name, O_WRONLY, true) < 0)
		return;
	int err = t_append(r, &f, rnd_in(r, CONTENT_MIN, 4096));
	if (!err && chance(r, 20))
		t_chmod(r, sub, &f, chance(r, 50) ? 0600 : 0640);
	if (t_close(r, &f) || err)
		return;
	switch (rnd(r) % 7) {
	case 0:
		t_rename(r, sub, name, d, name);
		break;
	case 1:
		if (!t_link(r, sub, name, name2) && chance(r, 30))
			append_file(r, sub, &f);	/* seen under both names */
		break;
	case 2:
		t_setxattr(r, sub, &f, (uint32_t)rnd(r) % 1000);
		break;
	case 3:
		t_chmod(r, sub, &f, 0600);
		break;
	case 4:
		t_unlink(r, sub, name);
		break;
	case 5:
		if (!t_link(r, sub, name, name2))
			t_unlink(r, sub, name);
		break;
	default:
		break;
	}
}

static void churn_step(struct rank *r, struct run *u)
{
	struct tdir d = { 0 }, sub;

	if (!step_dir(r, "snap", &d))
		return;
	if (!(t_mkdir(r, &d, "sub", &sub) < 0))
		for (unsigned i = 0, n = (unsigned)rnd_in(r, 4, 16); i < n; i++)
			churn_file(r, &d, &sub, i);
	t_barrier(r);
	if (!r->id)
		commit_metadata(r, &d, false);
	rotate(r, u, &d, u->step & 1);
}

/* DCP's shards by libcairn, some names twice */
static void buffer_step(struct rank *r, struct run *u)
{
	struct tdir d = { 0 };
	struct tfile f;
	char name[HIST_NAME];

	if (!step_dir(r, "step", &d))
		return;
	for (unsigned i = 0, n = (unsigned)rnd_in(r, 1, 2 * SHARDS); i < n; i++) {
		snprintf(name, sizeof(name), "__%u_%u.distcp", r->id, i / 2);
		if (lent_file(r, &u->buffers[i % BUFFERS], &d, name, i % 2) && i % 2 == 0)
			write_file(r, &d, name, &f);
	}
	t_barrier(r);
	if (!r->id)
		commit_metadata(r, &d, false);
	rotate(r, u, &d, u->step & 1);
}

/* ---- life ---------------------------------------------------------------- */

static void run_rank(struct rank *r, uint64_t end_ns, unsigned steps)
{
	static void (*const manner[])(struct rank *, struct run *) = {
		dcp_step, overwrite_step, dir_rename_step, hf_step, deepspeed_step, churn_step,
		buffer_step,
	};
	struct hist_head *hd = r->h.head;
	struct run u = { .tracker.fd = -1 };

	for (unsigned i = 0; i < BUFFERS; i++)
		u.buffers[i].fd = -1;
	for (;; u.step++) {
		if (!r->id)
			atomic_store(&hd->go, !atomic_load(&hd->stop) && u.step < steps &&
						      hist_now_ns() < end_ns);
		t_barrier(r);
		if (!atomic_load(&hd->go))
			break;
		manner[mix64(hd->seed ^ mix64(u.step)) % (sizeof(manner) / sizeof(*manner))](r, &u);
		t_barrier(r);
		if (chance(r, 30))
			usleep((useconds_t)rnd_in(r, 0, 8000));
	}
	for (unsigned i = 0; i < BUFFERS; i++)
		t_buffer_drop(r, &u.buffers[i]);
}

/* A mount lends buffers; any other directory has none. */
static void find_buffers(struct rank *r)
{
	snprintf(r->buffers, sizeof(r->buffers), "%.900s/../.cairn/buffers", r->root);
	if (access(r->buffers, F_OK))
		*r->buffers = 0;
}

static pid_t rank_pid[64];
static volatile sig_atomic_t killed;

static void kill_ranks(int sig)
{
	killed = sig;
	for (unsigned i = 0; i < 64 && rank_pid[i]; i++)
		kill(rank_pid[i], SIGKILL);
}

static void rank_main(struct rank *r, uint64_t end_ns, unsigned steps)
{
	signal(SIGTERM, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	r->rng = mix64(r->h.head->seed * 64 + r->id);
	if (posix_memalign((void **)&r->buf, 4096, IO_MAX))
		_exit(2);
	run_rank(r, end_ns, steps);
	_exit(0);
}

static void term_held(sigset_t *term)
{
	sigemptyset(term);
	sigaddset(term, SIGTERM);
	sigprocmask(SIG_BLOCK, term, NULL);
}

static int start_ranks(struct rank *r, unsigned ranks, unsigned ms, unsigned steps)
{
	uint64_t end_ns = hist_now_ns() + (uint64_t)ms * 1000000u;
	struct sigaction act = { .sa_handler = kill_ranks, .sa_flags = SA_RESTART };
	int bad = 0, status;
	sigset_t term;

	term_held(&term);	/* until all are known */
	sigaction(SIGTERM, &act, NULL);
	for (r->id = 0; r->id < ranks; r->id++) {
		rank_pid[r->id] = fork();
		if (rank_pid[r->id] < 0)
			return -errno;
		if (!rank_pid[r->id]) {
			sigprocmask(SIG_UNBLOCK, &term, NULL);
			rank_main(r, end_ns, steps);
		}
	}
	sigprocmask(SIG_UNBLOCK, &term, NULL);
	while (wait(&status) > 0)
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			bad = 1;
			/* after a cut a mapping may be SIGBUS: the disk is gone */
			if (killed || atomic_load(&r->h.head->crash))
				continue;
			atomic_store(&r->h.head->failed, 1);	/* nobody is to wait for it */
			if (WIFSIGNALED(status))
				fprintf(stderr, "a trainer died of signal %d\n", WTERMSIG(status));
		}
	return bad && !killed;
}

static int tell(const char *what, const char *path)
{
	struct hist h;
	int err = hist_open(&h, path);

	if (err) {
		fprintf(stderr, "load: %s: %s\n", path, strerror(-err));
		return 2;
	}
	if (!strcmp(what, "crash"))
		atomic_store(&h.head->crash, 1);
	atomic_store(&h.head->stop, 1);
	return 0;
}

static int usage(void)
{
	fprintf(stderr, "usage: load [-r ranks] [-t ms] [-n steps] [-m max_kib] [-f fsync_pct] "
			"[-e] [-S] DIR HIST SEED | load -c crash|stop HIST\n");
	return 2;
}

int main(int argc, char **argv)
{
	struct rank r = { .fsync_pct = 10, .max_kb = 8192, .strict_fsync = true };
	unsigned ranks = 4, ms = 1000, steps = UINT32_MAX;
	int c;

	while ((c = getopt(argc, argv, "c:r:t:n:m:f:eS")) != -1)
		switch (c) {
		case 'c': return optind + 1 == argc ? tell(optarg, argv[optind]) : usage();
		case 'r': ranks = (unsigned)atoi(optarg); break;
		case 't': ms = (unsigned)atoi(optarg); break;
		case 'n': steps = (unsigned)atoi(optarg); break;
		case 'm': r.max_kb = (unsigned)atoi(optarg); break;
		case 'f': r.fsync_pct = (unsigned)atoi(optarg); break;
		case 'e': r.tolerant = true; break;
		case 'S': r.strict_fsync = false; break;
		default: return usage();
		}
	if (argc - optind != 3 || !ranks || ranks > 64)
		return usage();
	umask(022);
	r.root = argv[optind];
	if (mkdir(r.root, 0755) && errno != EEXIST) {
		fprintf(stderr, "load: %s: %s\n", r.root, strerror(errno));
		return 2;
	}
	find_buffers(&r);
	sigset_t term;
	term_held(&term);	/* who sees the history may end us */
	int err = hist_create(&r.h, argv[optind + 1]);
	if (err) {
		fprintf(stderr, "load: %s: %s\n", argv[optind + 1], strerror(-err));
		return 2;
	}
	r.h.head->ranks = ranks;
	r.h.head->seed = strtoull(argv[optind + 2], NULL, 0);
	err = start_ranks(&r, ranks, ms, steps);
	return err ? 1 : 0;
}
