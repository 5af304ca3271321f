// SPDX-License-Identifier: MIT
/* model: a publisher to test the checker with. Takes a whole recorded history, lets the
 * power fail at some moment of it, and builds the tree that a right publisher could have
 * left, or one with a chosen fault in it.
 *
 *   model HIST OUT_HIST TREE SEED [fault]
 *
 * OUT_HIST gets the history as it stood at that moment. Exit 0: built; a line tells what.
 * 3: this history has no place for the fault (take another seed).
 *
 * Faults: order metadata torn cut mixed swapped synced resurrect halfrename stray attr
 * links relent (a buffer's next bytes in the file made of it) unlent (one that was being filled) */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/xattr.h>

#include "replay.h"

struct place {
	uint32_t dir;
	const char *name;	/* NULL: nowhere */
};

struct mfile {
	struct place at;	/* where it stands or will stand */
	int fd;			/* once sealed */
	uint32_t mode, xattr;
};

struct mdir {
	uint32_t parent;
	char name[HIST_NAME];
};

struct model {
	struct replay p;
	const char *tree;
	uint64_t rng, crash;
	uint64_t *pos;		/* per op: its place in one linear order */
	struct op **run;	/* applied, in that order */
	struct place *where;	/* per applied op: the entry it made */
	uint32_t n_run;
	struct mfile *files;
	struct mdir *dirs;
	uint32_t n_dirs;
	uint32_t skip;		/* applied op to leave out; UINT32_MAX = none */
};

static uint64_t rnd(struct model *m)
{
	return mix64(m->rng++);
}

static void *need(void *p)
{
	if (!p) {
		fprintf(stderr, "model: no memory\n");
		exit(2);
	}
	return p;
}

static void must(int ret, const char *what, const char *path)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "model: %s %s: %s\n", what, path, strerror(errno));
	exit(2);
}

/* ---- the moment ---------------------------------------------------------- */

/* A mapped version waits for its mapping, and all fsyncs after it wait with it; the load
 * on a plain directory did not. Moments inside such a mapping are not possible ones. */
static bool in_mapping(const struct model *m, uint64_t t)
{
	for (uint32_t i = 0; i < m->p.n_ops; i++) {
		const struct hist_rec *r = m->p.ops[i].rec;

		if (r->kind != H_WRITE || !(r->flags & HF_MAPPED))
			continue;
		for (uint32_t j = i; j--;) {
			const struct hist_rec *q = m->p.ops[j].rec;

			if (q->kind == H_SEAL && q->fid == r->fid && q->begin <= t && t <= r->end)
				return true;
		}
	}
	return false;
}

/* The version of a buffer that these bytes are for, or NULL. */
static const struct hist_rec *lent_by(const struct model *m, const struct hist_rec *bytes)
{
	for (uint32_t i = m->p.first[bytes->fid]; i < m->p.first[bytes->fid + 1]; i++) {
		const struct hist_rec *r = m->p.bytes[i];

		if (r->kind == H_OPEN && (r->flags & HF_LENT) && r->ver == bytes->ver)
			return r;
	}
	return NULL;
}

/* While a buffer is being filled. */
static bool pick_filling(struct model *m)
{
	uint32_t start = (uint32_t)(rnd(m) % (m->p.n_ops + 1));

	for (uint32_t k = 0; k < m->p.n_ops; k++) {
		const struct hist_rec *r = m->p.ops[(start + k) % m->p.n_ops].rec;

		m->crash = r->begin + 1;
		if (r->kind == H_WRITE && lent_by(m, r) && !in_mapping(m, m->crash))
			return true;
	}
	return false;
}

static bool pick_crash(struct model *m, bool filling)
{
	uint64_t top = atomic_load(&m->p.h.head->stamp);

	if (filling)
		return pick_filling(m);
	for (int i = 0; i < 200; i++) {
		m->crash = top / 4 + rnd(m) % (top * 3 / 4);
		if (!in_mapping(m, m->crash))
			return true;
	}
	return false;
}

/* Writes the history as it was at the crash, and reads it again. */
static void cut_history(struct model *m, const char *out)
{
	struct hist h;
	uint32_t n = hist_count(&m->p.h);

	must(hist_create(&h, out), "history", out);
	memcpy(h.head, m->p.h.head, sizeof(*h.head));
	memcpy(h.recs, m->p.h.recs, n * sizeof(*h.recs));
	for (uint32_t i = 0; i < n; i++) {
		if (h.recs[i].begin >= m->crash)
			h.recs[i].begin = 0;
		if (h.recs[i].end >= m->crash)
			h.recs[i].end = 0;
	}
	must(replay_open(&m->p, out), "history", out);
}

static int by_pos(const void *a, const void *b, void *ctx)
{
	const struct model *m = ctx;
	const struct op *const *x = a, *const *y = b;
	uint64_t p = m->pos[*x - m->p.ops], q = m->pos[*y - m->p.ops];

	return (p > q) - (p < q);
}

/* One linear order that agrees with the clock, cut after all that was fsynced. */
static void pick_prefix(struct model *m, bool all)
{
	uint64_t low = 0;

	m->pos = need(calloc(m->p.n_ops + 1, sizeof(*m->pos)));
	m->run = need(calloc(m->p.n_ops + 1, sizeof(struct op *)));
	m->where = need(calloc(m->p.n_ops + 1, sizeof(*m->where)));
	for (uint32_t i = 0; i < m->p.n_ops; i++) {
		struct op *o = &m->p.ops[i];
		uint64_t end = o->end == NEVER ? m->crash : o->end;

		m->pos[i] = (o->begin << 16) + rnd(m) % ((end - o->begin) << 16);
		if (o->ok && (o->rec->flags & HF_SYNC) && m->pos[i] > low)
			low = m->pos[i];
	}
	uint64_t cut = low + rnd(m) % ((m->crash << 16) - low + 1);
	if (rnd(m) % 3)	/* mostly far on: an empty tree teaches little */
		cut = low + ((m->crash << 16) - low) / 8 * (4 + rnd(m) % 5);
	cut = all ? m->crash << 16 : cut;
	for (uint32_t i = 0; i < m->p.n_ops; i++)
		if (m->pos[i] <= cut)
			m->run[m->n_run++] = &m->p.ops[i];
	qsort_r(m->run, m->n_run, sizeof(*m->run), by_pos, m);
}

/* ---- applying ------------------------------------------------------------ */

static void dir_path(const struct model *m, uint32_t dir, char *out, size_t cap)
{
	char up[512];

	if (!dir) {
		snprintf(out, cap, "%s", m->tree);
		return;
	}
	dir_path(m, m->dirs[dir].parent, up, sizeof(up));
	snprintf(out, cap, "%.400s/%s", up, m->dirs[dir].name);
}

static const char *entry_path(const struct model *m, struct place at, char out[600])
{
	char dir[512];

	dir_path(m, at.dir, dir, sizeof(dir));
	snprintf(out, 600, "%s/%s", dir, at.name);
	return out;
}

static void set_attrs(const struct mfile *f)
{
	char text[16];

	if (f->fd < 0)
		return;
	must(fchmod(f->fd, f->mode), "fchmod", "");
	snprintf(text, sizeof(text), "%u", f->xattr);
	if (f->xattr)
		must(fsetxattr(f->fd, "user.load", text, strlen(text), 0), "fsetxattr", "");
}

static void apply_seal(struct model *m, const struct hist_rec *r)
{
	struct mfile *f = &m->files[r->fid];
	struct image im;
	char path[600];

	if (f->fd < 0 && !f->at.name)
		return;
	must(replay_image(&m->p, r->fid, r->ver, false, &im), "image", "");
	if (f->fd < 0) {
		f->fd = open(entry_path(m, f->at, path), O_RDWR | O_CREAT | O_TRUNC, 0600);
		must(f->fd, "create", path);
		set_attrs(f);
	}
	must(ftruncate(f->fd, 0), "ftruncate", "");
	if (pwrite(f->fd, im.data, im.size, 0) != (ssize_t)im.size)
		must(-1, "pwrite", "");
	free(im.data);
}

static uint32_t file_at(const struct model *m, struct place at)
{
	for (uint32_t f = 1; f < m->p.n_fids; f++)
		if (m->files[f].at.name && m->files[f].at.dir == at.dir &&
		    !strcmp(m->files[f].at.name, at.name))
			return f;
	return 0;
}

static uint32_t dir_at(const struct model *m, struct place at)
{
	for (uint32_t d = 1; d < m->n_dirs; d++)
		if (m->dirs[d].parent == at.dir && !strcmp(m->dirs[d].name, at.name))
			return d;
	return 0;
}

static void apply_rename(struct model *m, struct place from, struct place to)
{
	uint32_t fid = file_at(m, from), over = file_at(m, to), dir = dir_at(m, from);
	char a[600], b[600];

	if (!fid || m->files[fid].fd >= 0)
		must(rename(entry_path(m, from, a), entry_path(m, to, b)), "rename", a);
	if (over)
		m->files[over].at.name = NULL;
	if (fid)
		m->files[fid].at = to;
	if (dir && !fid)
		snprintf(m->dirs[dir].name, HIST_NAME, "%s", to.name);
}

static void apply_unlink(struct model *m, struct place at)
{
	uint32_t fid = file_at(m, at);
	char path[600];

	if (!fid || m->files[fid].fd >= 0)
		must(unlink(entry_path(m, at, path)), "unlink", path);
	if (fid)
		m->files[fid].at.name = NULL;
}

static void apply_attr(struct model *m, const struct hist_rec *r)
{
	if (r->kind == H_CHMOD)
		m->files[r->fid].mode = r->ver;
	else
		m->files[r->fid].xattr = r->ver;
	set_attrs(&m->files[r->fid]);
}

static void apply_mkdir(struct model *m, const struct hist_rec *r)
{
	char path[600];

	m->dirs[r->fid].parent = r->dir;
	snprintf(m->dirs[r->fid].name, HIST_NAME, "%s", r->name);
	dir_path(m, r->fid, path, sizeof(path));
	must(mkdir(path, 0755), "mkdir", path);
}

static void apply(struct model *m, const struct hist_rec *r)
{
	struct place at = { r->dir, r->name }, to = { r->dir2, r->name2 };
	char a[600], b[600];

	switch ((enum hist_kind)r->kind) {
	case H_OPEN:
		if (r->flags & HF_CREATE)
			m->files[r->fid].at = at;
		break;
	case H_SEAL: apply_seal(m, r); break;
	case H_RENAME: apply_rename(m, at, to); break;
	case H_UNLINK: apply_unlink(m, at); break;
	case H_LINK:
		must(link(entry_path(m, at, a), entry_path(m, to, b)), "link", b);
		break;
	case H_SYMLINK:
		snprintf(a, sizeof(a), "to-%u", r->ver);
		must(symlink(a, entry_path(m, at, b)), "symlink", b);
		break;
	case H_MKDIR: apply_mkdir(m, r); break;
	case H_RMDIR:
		must(rmdir(entry_path(m, at, a)), "rmdir", a);
		m->dirs[dir_at(m, at)].name[0] = 0;
		break;
	case H_CHMOD: case H_XATTR: apply_attr(m, r); break;
	default: break;
	}
}

/* Where each applied seal's file stood: the first step of finding a fault's place. */
static void dry_run(struct model *m)
{
	for (uint32_t i = 0; i < m->n_run; i++) {
		const struct hist_rec *r = m->run[i]->rec;
		struct place at = { r->dir, r->name }, to = { r->dir2, r->name2 };
		uint32_t fid;

		if (r->kind == H_OPEN && (r->flags & HF_CREATE))
			m->files[r->fid].at = at;
		else if (r->kind == H_RENAME && (fid = file_at(m, at)))
			m->files[fid].at = to;
		else if (r->kind == H_UNLINK && (fid = file_at(m, at)))
			m->files[fid].at.name = NULL;
		m->where[i] = at;
		if (r->kind == H_SEAL || r->kind == H_CHMOD)
			m->where[i] = m->files[r->fid].at;
		else if (r->kind == H_RENAME || r->kind == H_LINK)
			m->where[i] = to;
	}
	for (uint32_t f = 0; f < m->p.n_fids; f++)
		m->files[f].at.name = NULL;
}

/* ---- faults -------------------------------------------------------------- */

static bool touched(const struct model *m, uint32_t i, uint32_t dir, const char *name)
{
	for (uint32_t j = i + 1; j < m->n_run; j++) {
		const struct hist_rec *r = m->run[j]->rec;

		if ((r->dir == dir && !strcmp(r->name, name)) ||
		    (r->dir2 == dir && !strcmp(r->name2, name)))
			return true;
	}
	return false;
}

/* Is directory dir removed after run[i]? */
static bool dir_goes(const struct model *m, uint32_t i, uint32_t dir)
{
	for (uint32_t j = i + 1; j < m->n_run; j++) {
		const struct hist_rec *r = m->run[j]->rec;
		const char *dash = strrchr(r->name, '-');

		if (r->kind == H_RMDIR && dash && (uint32_t)atoi(dash + 1) == dir)
			return true;
	}
	return false;
}

/* Does nothing that is applied after run[i] touch the entry or file it made? */
static bool lasting(const struct model *m, uint32_t i)
{
	const struct hist_rec *a = m->run[i]->rec;
	struct place at = m->where[i];

	if (!at.name || touched(m, i, at.dir, at.name))
		return false;
	for (uint32_t j = i + 1; j < m->n_run; j++) {
		const struct hist_rec *r = m->run[j]->rec;

		if (a->fid && r->fid == a->fid && r->kind != H_MKDIR && r->kind != H_READ &&
		    r->kind != H_CLOSE)
			return false;
	}
	return true;
}

/* Is the entry touched after the cut, too? A tree that lacks it may then be right after all: it is
 * that of the moment behind its removal. */
static bool goes_later(const struct model *m, uint32_t i)
{
	struct place at = m->where[i];

	for (uint32_t j = 0; j < m->p.n_ops; j++) {
		const struct hist_rec *r = m->p.ops[j].rec;

		if (m->p.ops[j].begin > m->run[i]->begin &&
		    ((r->dir == at.dir && !strcmp(r->name, at.name)) ||
		     (r->dir2 == at.dir && !strcmp(r->name2, at.name))))
			return true;
	}
	return false;
}

/* Is a first close that lasts, and began after run[i] had ended, applied? */
static bool later_seal(const struct model *m, uint32_t i)
{
	for (uint32_t j = i + 1; j < m->n_run; j++)
		if (m->run[j]->rec->kind == H_SEAL && m->run[j]->begin > m->run[i]->end &&
		    lasting(m, j))
			return true;
	return false;
}

static bool metadata_later(const struct model *m, uint32_t i)
{
	for (uint32_t j = i + 1; j < m->n_run; j++)
		if (m->run[j]->rec->kind == H_RENAME && m->run[j]->begin > m->run[i]->end &&
		    m->where[j].dir == m->where[i].dir &&
		    !strcmp(m->where[j].name, ".metadata") && lasting(m, j))
			return true;
	return false;
}

/* Was there such an operation on the same entry (on the file, if given) before run[i]? */
static bool before(const struct model *m, uint32_t i, enum hist_kind kind, uint32_t fid)
{
	for (uint32_t j = 0; j < i; j++)
		if (m->run[j]->rec->kind == kind && m->where[j].name &&
		    (fid ? m->run[j]->rec->fid == fid
			 : m->where[j].dir == m->where[i].dir &&
				   !strcmp(m->where[j].name, m->where[i].name)))
			return true;
	return false;
}

static uint64_t size_of(const struct model *m, const struct hist_rec *r)
{
	return replay_size(&m->p, r->fid, r->ver, false);
}

/* The file made next of a buffer of the same trainer, if r made one. */
static const struct hist_rec *next_lent(const struct model *m, const struct hist_rec *r)
{
	const struct hist_rec *q;
	uint32_t i = 0;

	while (i < m->p.n_ops && m->p.ops[i].rec != lent_by(m, r))
		i++;
	for (i++; i < m->p.n_ops; i++) {
		q = m->p.ops[i].rec;
		if (q->kind == H_OPEN && (q->flags & HF_LENT) && q->rank == r->rank)
			return q;
	}
	return NULL;
}

/* Is the fault an operation left out? */
static bool is_skip(const char *fault)
{
	return strstr("order metadata synced resurrect attr", fault) != NULL;
}

/* May the fault sit at run[i]? */
static bool suits(const struct model *m, uint32_t i, const char *fault)
{
	const struct hist_rec *r = m->run[i]->rec;
	enum hist_kind k = r->kind;
	bool big = k == H_SEAL && size_of(m, r) >= 2 * CONTENT_BLOCK;

	if (!m->run[i]->ok || !lasting(m, i) || (is_skip(fault) && goes_later(m, i)))
		return false;
	if (!strcmp(fault, "order"))
		return k == H_SEAL && size_of(m, r) && later_seal(m, i);
	if (!strcmp(fault, "metadata"))
		return k == H_SEAL && size_of(m, r) && metadata_later(m, i);
	if (!strcmp(fault, "synced"))
		return k == H_SEAL && size_of(m, r) && (r->flags & HF_SYNC);
	if (!strcmp(fault, "resurrect"))
		return k == H_UNLINK && before(m, i, H_SEAL, 0) && later_seal(m, i);
	if (!strcmp(fault, "halfrename"))
		return k == H_RENAME && !touched(m, i, r->dir, r->name) && !dir_goes(m, i, r->dir);
	if (!strcmp(fault, "attr"))
		/* not one that came with a buffer's file: that has no moment of its own */
		return k == H_CHMOD && !before(m, i, H_CHMOD, r->fid) && before(m, i, H_SEAL, r->fid) &&
		       later_seal(m, i);
	if (!strcmp(fault, "links"))
		return k == H_LINK && !touched(m, i, r->dir, r->name);
	if (!strcmp(fault, "relent"))
		return big && next_lent(m, r);
	return big;
}

static uint32_t pick_op(struct model *m, const char *fault)
{
	uint32_t start = (uint32_t)(rnd(m) % (m->n_run + 1));

	for (uint32_t n = 0; n < m->n_run; n++) {
		uint32_t i = (start + n) % m->n_run;

		if (suits(m, i, fault))
			return i;
	}
	return UINT32_MAX;
}

static void write_at(const char *path, uint64_t off, const void *d, size_t n)
{
	int fd = open(path, O_WRONLY);

	must(fd, "open", path);
	if (pwrite(fd, d, n, (off_t)off) != (ssize_t)n)
		must(-1, "pwrite", path);
	close(fd);
}

static void spoil_bytes(struct model *m, uint32_t i, const char *fault)
{
	const struct hist_rec *r = m->run[i]->rec;
	uint64_t size = size_of(m, r), half = size / 2 + 1;
	char path[600], *d = need(calloc(1, size));

	entry_path(m, m->where[i], path);
	if (!strcmp(fault, "cut"))
		must(truncate(path, (off_t)(size - 1)), "truncate", path);
	else if (!strcmp(fault, "torn"))
		write_at(path, half, d, size - half);
	else if (!strcmp(fault, "mixed"))
		content_fill(d, r->fid, r->ver - 1, half, size - half), write_at(path, half, d, size - half);
	else if (!strcmp(fault, "swapped"))
		content_fill(d, r->fid + 1, r->ver, 0, size), write_at(path, 0, d, size);
	else if (!strcmp(fault, "relent"))
		content_fill(d, next_lent(m, r)->fid, 1, half, size - half), write_at(path, half, d, size - half);
	free(d);
}

static void copy_file(const char *from, const char *to)
{
	char cmd[1400];

	snprintf(cmd, sizeof(cmd), "cp -pr --remove-destination '%s' '%s'", from, to);
	if (system(cmd))
		must(-1, "cp", to);
}

static void spoil_names(struct model *m, uint32_t i, const char *fault)
{
	const struct hist_rec *r = m->run[i]->rec;
	struct place from = { r->dir, r->name };
	char a[600], b[610];

	entry_path(m, m->where[i], a);
	if (!strcmp(fault, "halfrename")) {
		entry_path(m, from, b);
		copy_file(a, b);
	} else if (!strcmp(fault, "links")) {
		snprintf(b, sizeof(b), "%s.copy", a);
		copy_file(a, b);
		must(rename(b, a), "rename", a);
	}
}

/* The file that is being filled gets its name too early. false: no place for it. */
static bool spoil_unlent(struct model *m)
{
	uint32_t i = 0;
	char path[600], d[CONTENT_MIN];

	while (m->p.ops[i].begin != m->crash - 1)
		i++;
	const struct hist_rec *r = lent_by(m, m->p.ops[i].rec);
	content_fill(d, r->fid, r->ver, 0, sizeof(d));
	int fd = open(entry_path(m, (struct place){ r->dir, r->name }, path), O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0 && (errno == ENOENT || errno == EEXIST))
		return false;
	must(fd, "create", path);
	m->files[r->fid].fd = fd;
	set_attrs(&m->files[r->fid]);
	write_at(path, 0, d, sizeof(d));
	return true;
}

static void run_all(struct model *m, const char *fault, uint32_t at)
{
	for (uint32_t i = 0; i < m->n_run; i++) {
		if (i == at && is_skip(fault)) {
			if (!strcmp(fault, "resurrect"))
				m->files[file_at(m, m->where[i])].at.name = NULL;
			continue;
		}
		apply(m, m->run[i]->rec);
	}
	if (!strcmp(fault, "stray"))
		must(open(strcat(strcpy((char[600]){ 0 }, m->tree), "/stray"), O_CREAT | O_WRONLY, 0600),
		     "create", "stray");
	else if (!strcmp(fault, "halfrename") || !strcmp(fault, "links"))
		spoil_names(m, at, fault);
	else if (at != UINT32_MAX && !is_skip(fault))
		spoil_bytes(m, at, fault);
}

int main(int argc, char **argv)
{
	struct model m = { .skip = UINT32_MAX };
	struct rlimit lim = { 65536, 65536 };
	const char *fault = argc == 6 ? argv[5] : "none";
	uint32_t at = UINT32_MAX;

	if (argc < 5) {
		fprintf(stderr, "usage: model HIST OUT_HIST TREE SEED [fault]\n");
		return 2;
	}
	setrlimit(RLIMIT_NOFILE, &lim);
	umask(022);
	m.tree = argv[3];
	m.rng = mix64(strtoull(argv[4], NULL, 0));
	must(replay_open(&m.p, argv[1]), "history", argv[1]);
	bool filling = !strcmp(fault, "unlent");
	if (!pick_crash(&m, filling))
		return 3;
	cut_history(&m, argv[2]);
	pick_prefix(&m, filling);	/* so that nothing else is amiss */
	m.n_dirs = atomic_load(&m.p.h.head->next_dir) + 1;
	m.files = need(calloc(m.p.n_fids + 1, sizeof(*m.files)));
	m.dirs = need(calloc(m.n_dirs, sizeof(*m.dirs)));
	for (uint32_t f = 0; f < m.p.n_fids; f++)
		m.files[f] = (struct mfile){ .fd = -1, .mode = 0644 };
	dry_run(&m);
	if (strcmp(fault, "none") && strcmp(fault, "stray") && !filling) {
		at = pick_op(&m, fault);
		if (at == UINT32_MAX || (is_skip(fault) && dir_goes(&m, at, m.where[at].dir)))
			return 3;
	}
	must(mkdir(m.tree, 0755), "mkdir", m.tree);
	run_all(&m, fault, at);
	if (filling && !spoil_unlent(&m))
		return 3;
	printf("model: %s, %u of %u calls applied, crash at %llu%s%s\n", fault, m.n_run, m.p.n_ops,
	       (unsigned long long)m.crash, at != UINT32_MAX ? ", at " : "",
	       at != UINT32_MAX && m.where[at].name ? m.where[at].name : "");
	return 0;
}
