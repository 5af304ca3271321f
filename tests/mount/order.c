/* SPDX-License-Identifier: MIT
 *
 * P1 and P2, on the fly: while one process makes changes on the mount, another takes
 * samples of the store. Every sample must equal the state after some prefix of the
 * recorded changes, later samples later prefixes; none may be ahead of the mount, and
 * none behind what an fsync has promised.
 *
 *	order DIR STORE_DIR [--seed N] [--ops N] [--staged] [--break]
 *
 * STORE_DIR is DIR's directory in the store. --staged: fsync promises nothing here.
 * --break forges one sample: a run that does not notice is a broken test.
 *
 * A sample is taken by two walks: where both find the same inodes with the same times,
 * nothing has changed between the end of the first and the start of the second.
 */
#include <dirent.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "check.h"

#define MAX_ENTRIES 120
#define MAX_STATES 6000
#define MAX_SAMPLES 40000
#define LISTING 12000

struct entry {
	char path[64];
	char type;		/* f d l */
	uint64_t tag;		/* of a file's bytes; two files of one tag are one inode */
	long size;
	unsigned mode;
};

struct state {
	uint64_t hash;
	char what[100];		/* the change that led here */
	char listing[LISTING];
};

struct sample {
	uint64_t hash;
	int least, most;	/* the states it may be: what fsync promised, what was begun */
	char listing[LISTING];
};

/* Written by the one side, read by the other. */
static struct shared {
	atomic_int begun, synced, stop;
	atomic_int nsamples, torn_walks;
	char error[300];	/* the sampler found a file that is no version at all */
	struct sample samples[MAX_SAMPLES];
} *sh;

static struct entry model[MAX_ENTRIES];
static int nmodel;
static struct state *states;
static int nstates;
static uint64_t rng;
static long next_tag = 1;
static bool fsync_promises = true;

static uint64_t rnd(uint64_t n)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z ^ z >> 31) % n;
}

static uint64_t hash_of(const char *text)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3u;
	return h;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->path, ((const struct entry *)b)->path);
}

static void list(struct entry *e, int n, char out[LISTING])
{
	int at = 0;

	qsort(e, n, sizeof(*e), by_path);
	out[0] = 0;
	for (int i = 0; i < n && at < LISTING - 120; i++)
		at += e[i].type == 'd' ? sprintf(out + at, "%s/\n", e[i].path) :
			sprintf(out + at, "%s %c %o %ld #%lu\n", e[i].path, e[i].type, e[i].mode,
				e[i].size, (unsigned long)e[i].tag);
}

/* ---- the sampler ------------------------------------------------------------------------- */

struct walk {
	struct entry e[MAX_ENTRIES];
	uint64_t times;		/* a hash of inodes and times */
	int n;
	bool read;		/* the contents too */
	bool gone;		/* something went while we looked */
};

/* A store file is never written again under the same ctime: what was read stays read. */
static bool was_read(const struct stat *st, struct entry *e, bool remember)
{
	static struct {
		ino_t ino;
		off_t size;
		struct timespec ctim;
		uint64_t tag;
	} cache[1024], *c;

	c = &cache[st->st_ino % 1024];
	if (remember) {
		c->ino = st->st_ino;
		c->size = st->st_size;
		c->ctim = st->st_ctim;
		c->tag = e->tag;
		return true;
	}
	if (c->ino != st->st_ino || c->size != st->st_size ||
	    c->ctim.tv_sec != st->st_ctim.tv_sec || c->ctim.tv_nsec != st->st_ctim.tv_nsec)
		return false;
	e->tag = c->tag;
	return true;
}

/* A file is its tag, and then the bytes of that tag. */
static void read_file(struct walk *w, int dir, const char *name, struct entry *e, ino_t ino)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *buf;
	ssize_t n;

	if (fd == -1 || fstat(fd, &st) || st.st_ino != ino || st.st_size != e->size) {
		w->gone = true;		/* replaced meanwhile */
		if (fd != -1)
			close(fd);
		return;
	}
	buf = malloc(e->size + 1);
	n = pread(fd, buf, e->size + 1, 0);
	close(fd);
	if (n != e->size) {
		snprintf(sh->error, sizeof(sh->error), "%s: %zd bytes, stat said %ld", e->path, n,
			 e->size);
	} else if (n >= 8) {
		memcpy(&e->tag, buf, 8);
		if (differs(buf + 8, n - 8, e->tag, 8) != -1)
			snprintf(sh->error, sizeof(sh->error), "%s: torn, %zd bytes of #%lu", e->path,
				 n, (unsigned long)e->tag);
	}
	free(buf);
}

static void walk_dir(struct walk *w, int parent, const char *name, const char *path);

static void walk_entry(struct walk *w, int dir, const char *name, const char *path)
{
	struct entry *e = &w->e[w->n++];
	struct stat st;

	*e = (struct entry){ .type = 'd' };
	snprintf(e->path, sizeof(e->path), "%.31s%s%.31s", path, *path ? "/" : "", name);
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) {
		w->gone = true;
		return;
	}
	w->times = (w->times ^ st.st_ino) * 0x100000001b3u;
	w->times = (w->times ^ st.st_ctim.tv_nsec ^ st.st_mtim.tv_nsec << 30) * 0x100000001b3u;
	w->times = (w->times ^ st.st_ctim.tv_sec ^ st.st_size << 30) * 0x100000001b3u;
	if (S_ISDIR(st.st_mode)) {
		walk_dir(w, dir, name, e->path);
		return;
	}
	e->type = S_ISLNK(st.st_mode) ? 'l' : 'f';
	if (!S_ISREG(st.st_mode))
		return;
	e->mode = st.st_mode & 07777;
	e->size = st.st_size;
	if (!w->read || was_read(&st, e, false))
		return;
	read_file(w, dir, name, e, st.st_ino);
	was_read(&st, e, !w->gone);
}

static void walk_dir(struct walk *w, int parent, const char *name, const char *path)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char names[MAX_ENTRIES][64];
	struct dirent *d;
	int n = 0;
	DIR *dir;

	if (fd == -1) {
		w->gone = true;
		return;
	}
	dir = fdopendir(fd);
	while ((d = readdir(dir)) && n < MAX_ENTRIES)
		if (strcmp(d->d_name, ".") && strcmp(d->d_name, ".."))
			snprintf(names[n++], 64, "%.63s", d->d_name);
	for (int i = 0; i < n && w->n < MAX_ENTRIES; i++)
		walk_entry(w, fd, names[i], path);
	closedir(dir);
}

static void take_sample(int store_dir, bool forge)
{
	static struct walk first, second;
	int n = atomic_load(&sh->nsamples);
	struct sample *s = &sh->samples[n];

	if (n == MAX_SAMPLES)
		return;
	s->least = atomic_load(&sh->synced);
	memset(&first, 0, sizeof(first));
	memset(&second, 0, sizeof(second));
	first.read = true;
	walk_dir(&first, store_dir, ".", "");
	walk_dir(&second, store_dir, ".", "");
	if (first.gone || second.gone || first.n != second.n || first.times != second.times) {
		atomic_fetch_add(&sh->torn_walks, 1);
		return;
	}
	s->most = atomic_load(&sh->begun);
	if (forge && first.n)
		first.n--;
	list(first.e, first.n, s->listing);
	s->hash = hash_of(s->listing);
	if (n && s[-1].hash == s->hash) {	/* the same again, or a later one that looks alike */
		s[-1].least = s->least;
		s[-1].most = s->most;
		return;
	}
	atomic_store(&sh->nsamples, n + 1);
}

static void sampler(const char *path, bool forge)
{
	int store_dir = OK(open(path, O_RDONLY | O_DIRECTORY));

	while (!atomic_load(&sh->stop) && !sh->error[0]) {
		take_sample(store_dir, forge && atomic_load(&sh->nsamples) == 3);
		usleep(300);
	}
	_exit(0);
}

/* ---- the writer, and its model ---------------------------------------------------------------- */

static struct entry *find(const char *path)
{
	for (int i = 0; i < nmodel; i++)
		if (!strcmp(model[i].path, path))
			return &model[i];
	return NULL;
}

static struct entry *add(const char *path, char type)
{
	struct entry *e = find(path);

	if (!e)
		e = &model[nmodel++];
	*e = (struct entry){ .type = type };
	snprintf(e->path, sizeof(e->path), "%s", path);
	return e;
}

static void drop(const char *path)
{
	struct entry *e = find(path);

	if (e)
		*e = model[--nmodel];
}

static bool below(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return !strncmp(path, dir, n) && path[n] == '/';
}

static bool empty(const char *dir)
{
	for (int i = 0; i < nmodel; i++)
		if (below(model[i].path, dir))
			return false;
	return true;
}

static void moved(const char *from, const char *to)
{
	size_t n = strlen(from);

	drop(to);
	for (int i = 0; i < nmodel; i++)
		if (!strcmp(model[i].path, from) || below(model[i].path, from)) {
			char path[64];

			snprintf(path, sizeof(path), "%s%.30s", to, model[i].path + n);
			strcpy(model[i].path, path);
		}
}

/* The model is changed first, then the mount: a sample may be ahead by what is on its way. */
static void changed(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void changed(const char *fmt, ...)
{
	struct state *s = &states[nstates];
	va_list ap;

	TRUE(nstates < MAX_STATES);
	va_start(ap, fmt);
	vsnprintf(s->what, sizeof(s->what), fmt, ap);
	va_end(ap);
	list(model, nmodel, s->listing);
	s->hash = hash_of(s->listing);
	nstates++;
	atomic_store(&sh->begun, nstates - 1);
}

static void promised(void)
{
	if (fsync_promises)
		atomic_store(&sh->synced, nstates - 1);
}

static int write_file(const char *path, int flags, uint64_t tag, off_t from, off_t to)
{
	int fd = OK(open(path, O_WRONLY | flags, 0644));
	char *buf = malloc(to - from + 1);

	fill(buf, to - from, tag, from);
	if (!from && to >= 8)
		memcpy(buf, &tag, 8);
	write_all(fd, buf, to - from);
	free(buf);
	return fd;
}

/* An overwrite leaves it as it was. */
static unsigned mode_of(const char *path)
{
	struct entry *e = find(path);

	return e ? e->mode : 0644;
}

static void save(const char *path, long size, bool with_fsync)
{
	unsigned mode = mode_of(path);
	struct entry *e = add(path, 'f');
	int fd;

	e->tag = next_tag++;
	e->size = size < 8 ? 0 : size;
	if (!e->size)
		e->tag = 0;
	e->mode = mode;
	fd = write_file(path, O_CREAT | O_TRUNC, e->tag, 0, e->size);
	changed("%s %s #%lu %ld", with_fsync ? "save+fsync" : "save", path, (unsigned long)e->tag,
		e->size);
	if (with_fsync) {
		OK(fsync(fd));
		promised();
	}
	OK(close(fd));
}

/* Two versions: what stood at the fsync, and what stood at the close. */
static void save_in_two(const char *path, long first, long size)
{
	unsigned mode = mode_of(path);
	uint64_t tag = next_tag++;
	struct entry *e = add(path, 'f');
	int fd, more;

	e->mode = mode;
	e->tag = tag;
	e->size = first;
	fd = write_file(path, O_CREAT | O_TRUNC, tag, 0, first);
	changed("fsync %s #%lu %ld", path, (unsigned long)tag, first);
	OK(fsync(fd));
	promised();
	more = write_file(path, O_APPEND, tag, first, size);
	OK(close(more));
	find(path)->size = size;
	changed("close %s #%lu %ld", path, (unsigned long)tag, size);
	OK(close(fd));
}

static const char *some(char type)
{
	int n = 0, k;

	for (int i = 0; i < nmodel; i++)
		n += model[i].type == type;
	if (!n)
		return NULL;
	k = rnd(n);
	for (int i = 0;; i++)
		if (model[i].type == type && !k--)
			return model[i].path;
}

/* More than one name: an overwrite would have to change them all at once. */
static bool shared_inode(const char *path)
{
	struct entry *e = find(path);

	for (int i = 0; e && i < nmodel; i++)
		if (&model[i] != e && model[i].type == 'f' && e->tag && model[i].tag == e->tag)
			return true;
	return false;
}

static void fresh(char path[static 64], char kind)
{
	const char *dir = rnd(2) ? some('d') : NULL;

	if (dir && strchr(dir, '/'))
		dir = NULL;
	snprintf(path, 64, "%.40s%s%c%d", dir ? dir : "", dir ? "/" : "", kind, (int)rnd(6));
}

static long some_size(void)
{
	return rnd(10) == 0 ? 0 : rnd(8) == 0 ? (long)rnd(3 * MIB) : 16 + (long)rnd(30000);
}

static void op_save(void)
{
	struct entry *e;
	char path[64];

	fresh(path, 'f');
	e = find(path);
	if (shared_inode(path) || (e && e->type != 'f'))
		return;
	if (rnd(12) == 0)
		save_in_two(path, 16 + rnd(5000), 6000 + rnd(100000));
	else
		save(path, some_size(), rnd(8) == 0);
}

/* x.tmp and then x: what everyone does who wants it whole. */
static void op_replace(void)
{
	char tmp[64] = "tmp", path[64];
	struct entry *e;

	fresh(path, 'f');
	e = find(path);
	if (e && e->type != 'f')
		return;
	save(tmp, some_size(), rnd(6) == 0);
	moved(tmp, path);
	changed("rename %s %s", tmp, path);
	OK(rename(tmp, path));
}

static void op_append(void)
{
	const char *path = some('f');
	struct entry *e;
	long more = 1 + rnd(20000);
	char name[64];

	if (!path || !(e = find(path))->size || shared_inode(path) || e->mode == 0400)
		return;
	strcpy(name, path);
	int fd = write_file(name, O_APPEND, e->tag, e->size, e->size + more);

	e->size += more;
	changed("append %s %ld", name, e->size);
	OK(close(fd));
}

static void op_unlink(void)
{
	const char *found = rnd(8) ? some('f') : some('l');
	char path[64];

	if (!found)
		return;
	strcpy(path, found);
	drop(path);
	changed("unlink %s", path);
	OK(unlink(path));
}

static void op_mkdir(void)
{
	char path[64];

	fresh(path, 'd');
	if (find(path))
		return;
	add(path, 'd');
	changed("mkdir %s", path);
	OK(mkdir(path, 0755));
}

static void op_rename(void)
{
	const char *found = some(rnd(3) ? 'f' : 'd');
	char from[64], to[64];
	struct entry *e;

	if (!found)
		return;
	strcpy(from, found);
	fresh(to, find(from)->type);
	e = find(to);
	if (!strcmp(from, to) || below(to, from) || (e && e->type != find(from)->type) ||
	    (e && e->type == 'd' && !empty(to)) || (e && e->type == 'f' && e->tag == find(from)->tag))
		return;
	if (find(from)->type == 'd' && (strchr(to, '/') || strchr(from, '/')))
		return;		/* keep it flat */
	moved(from, to);
	changed("rename %s %s", from, to);
	OK(rename(from, to));
}

static void op_link(void)
{
	const char *found = some('f');
	char from[64], to[64];
	struct entry e;

	fresh(to, 'k');
	if (!found || !find(found)->size || find(to))
		return;
	strcpy(from, found);
	e = *find(from);
	*add(to, 'f') = e;
	strcpy(model[nmodel - 1].path, to);
	changed("link %s %s", from, to);
	OK(link(from, to));
}

static void op_symlink(void)
{
	char path[64];

	fresh(path, 's');
	if (find(path))
		return;
	add(path, 'l');
	changed("symlink %s", path);
	OK(symlink("target", path));
}

static void op_chmod(void)
{
	static const unsigned modes[] = { 0644, 0600, 0755 };
	const char *found = some('f');
	unsigned mode = modes[rnd(3)];
	char path[64];

	if (!found || shared_inode(found))
		return;
	strcpy(path, found);
	find(path)->mode = mode;
	changed("chmod %s %o", path, mode);
	OK(chmod(path, mode));
}

static void op_rmtree(void)
{
	const char *found = some('d');
	char dir[64];

	if (!found || strchr(found, '/'))
		return;
	strcpy(dir, found);
	for (bool again = true; again;) {
		again = false;
		for (int i = 0; i < nmodel && !again; i++) {
			struct entry e = model[i];

			if (!below(e.path, dir) || (e.type == 'd' && !empty(e.path)))
				continue;
			drop(e.path);
			changed("rmtree: %s", e.path);
			OK(e.type == 'd' ? rmdir(e.path) : unlink(e.path));
			again = true;
		}
	}
	drop(dir);
	changed("rmdir %s", dir);
	OK(rmdir(dir));
}

static void op_checkpoint(void)
{
	char dir[64], path[64];

	snprintf(dir, sizeof(dir), "d%d", (int)rnd(6));
	if (find(dir))
		return;
	add(dir, 'd');
	changed("mkdir %s", dir);
	OK(mkdir(dir, 0755));
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%.10s/f%d", dir, i);
		save(path, MIB / 2 + rnd(MIB), rnd(6) == 0);
	}
	snprintf(path, sizeof(path), "%.10s/.m.tmp", dir);
	save(path, 3000, rnd(2));
	snprintf(path, sizeof(path), "%.10s/.metadata", dir);
	{
		char tmp[64];

		snprintf(tmp, sizeof(tmp), "%.10s/.m.tmp", dir);
		moved(tmp, path);
		changed("rename %s %s", tmp, path);
		OK(rename(tmp, path));
	}
}

static void op_fsync_dir(void)
{
	int fd = OK(open(".", O_RDONLY | O_DIRECTORY));

	OK(fsync(fd));
	promised();
	OK(close(fd));
}

static void one_op(void)
{
	static const struct {
		void (*fn)(void);
		unsigned weight;
	} ops[] = {
		{ op_save, 20 }, { op_replace, 12 }, { op_append, 8 }, { op_unlink, 9 },
		{ op_mkdir, 7 }, { op_rename, 12 }, { op_link, 3 }, { op_symlink, 2 },
		{ op_chmod, 4 }, { op_rmtree, 3 }, { op_checkpoint, 2 }, { op_fsync_dir, 1 },
	};
	unsigned total = 0, pick;

	for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
		total += ops[i].weight;
	pick = rnd(total);
	for (size_t i = 0;; i++) {
		if (pick < ops[i].weight)
			return ops[i].fn();
		pick -= ops[i].weight;
	}
}

/* ---- the judge ------------------------------------------------------------------------------ */

/* How many lines of a are not in b; and they are printed, with a mark. */
static int missing(const char *a, const char *b, const char *mark)
{
	int n = 0;

	for (const char *end; (end = strchr(a, '\n')); a = end + 1) {
		char line[200];
		const char *at = b;
		size_t len = end - a + 1;
		bool found = false;

		snprintf(line, sizeof(line), "%.*s", (int)len, a);
		while (!found && (at = strstr(at, line))) {
			found = at == b || at[-1] == '\n';
			at++;
		}
		n += !found;
		if (!found && mark)
			printf("  %s %s", mark, line);
	}
	return n;
}

/* Says which state the sample is nearest to, and what differs. */
static void show(const struct sample *s, int nr, int lo)
{
	int best = lo, least = INT_MAX;

	printf("sample %d is no state between %d and %d\n", nr, lo, s->most);
	for (int i = 0; i < nstates; i++) {
		int n = missing(s->listing, states[i].listing, NULL) +
			missing(states[i].listing, s->listing, NULL);

		if (n < least || (n == least && i <= s->most)) {
			least = n;
			best = i;
		}
	}
	printf("it is nearest to state %d:\n", best);
	missing(states[best].listing, s->listing, "not in the sample:");
	missing(s->listing, states[best].listing, "only in the sample:");
	for (int i = best > 12 ? best - 12 : 0; i < nstates && i < best + 12; i++)
		printf("%d: %s\n", i, states[i].what);
}

/* The states must come in order; where two are equal the earlier is taken. */
static int judge(void)
{
	int lo = 0, distinct = 0, n = atomic_load(&sh->nsamples);

	if (sh->error[0])
		FAIL("store: %s", sh->error);
	for (int i = 0; i < n; i++) {
		const struct sample *s = &sh->samples[i];
		int j = lo;

		while (j <= s->most && states[j].hash != s->hash)
			j++;
		/* Of equal states any may be meant; one must satisfy what fsync promised. */
		for (int k = j; k <= s->most && j < s->least; k++)
			if (states[k].hash == s->hash)
				j = k;
		if (j > s->most || j < s->least) {
			show(s, i, j > s->most ? lo : s->least);
			FAIL("sample %d of %d: %s", i, n, j > s->most ? "no prefix of the history" :
			     "behind an fsync that returned");
		}
		distinct += j > 0 && j < nstates - 1;
		lo = j;
	}
	return distinct;
}

static void run(const char *dir, const char *store_dir, long ops, bool forge)
{
	int distinct;
	pid_t pid;

	OK(chdir(dir));
	env.plain = getxattr(".", "user.cairn.state", NULL, 0) == -1;
	changed("start");
	fflush(stdout);
	pid = OK(fork());
	if (!pid)
		sampler(store_dir, forge);
	/* Longer, where the sampler has not seen enough yet: a test that saw nothing proves nothing. */
	for (long i = 0; (i < ops || atomic_load(&sh->nsamples) < 10) &&
	     nstates < MAX_STATES - 200 && !sh->error[0]; i++) {
		if (nmodel < MAX_ENTRIES - 20)
			one_op();
		else
			op_unlink();
		if (rnd(25) == 0)
			usleep(rnd(4000));
	}
	durable(".");
	atomic_store(&sh->synced, nstates - 1);
	atomic_store(&sh->stop, 1);
	OK(waitpid(pid, NULL, 0));
	take_sample(OK(open(store_dir, O_RDONLY | O_DIRECTORY)), false);
	distinct = judge();
	if (!distinct)
		FAIL("no sample shows anything but the start and the end");
	printf("ok: %d changes, %d different samples, %d of them in between, %d walks overtaken\n",
	       nstates - 1, atomic_load(&sh->nsamples), distinct, atomic_load(&sh->torn_walks));
}

int main(int argc, char **argv)
{
	const char *dir = NULL, *store_dir = NULL;
	char real[PATH_MAX];
	long ops = 400;
	bool forge = false;

	env.name = "order";
	rng = 1;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seed") && argv[i + 1])
			rng = strtoull(argv[++i], NULL, 0);
		else if (!strcmp(argv[i], "--ops") && argv[i + 1])
			ops = atol(argv[++i]);
		else if (!strcmp(argv[i], "--staged"))
			fsync_promises = false;
		else if (!strcmp(argv[i], "--break"))
			forge = true;
		else
			*(dir ? &store_dir : &dir) = argv[i];
	}
	if (!store_dir || !realpath(store_dir, real)) {
		fprintf(stderr, "order DIR STORE_DIR [--seed N] [--ops N] [--staged] [--break]\n");
		return 2;
	}
	umask(022);
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
		  -1, 0);
	states = mmap(NULL, sizeof(*states) * MAX_STATES, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (sh == MAP_FAILED || states == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	run(dir, real, ops, forge);
	return 0;
}
