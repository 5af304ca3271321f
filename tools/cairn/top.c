/* SPDX-License-Identifier: MIT
 *
 * cairn top: what is not durable yet, by checkpoint (a directory) and rank (of its file names):
 * bytes staged and persisted, the rate, when it will be done, what it waits for. Two readings of
 * MOUNT/.cairn/files.json give the rates.
 */
#include "commands.h"

#include <getopt.h>
#include <string.h>

#define FILES_MAX (16u << 20) /* of files.json */
#define SAMPLE_S 0.5
#define WIDE 80u /* columns of the table; with fewer there are two lines for each row */
#define NAME_COLUMNS 24
#define SHOWN_MAX 16u /* ranks of one checkpoint */

struct file {
	char *path, *dir, *rank; /* dir: "." is the mount's root */
	char *wait;
	uint64_t bytes, persisted;
};

struct reading {
	struct file *file; /* by dir, rank and path */
	size_t n;
	uint64_t more; /* files that are not listed */
	double at; /* 0: none */
};

/* A checkpoint, or a rank of it. */
struct row {
	const char *name;
	const struct file *file;
	size_t n;
	uint64_t bytes, persisted;
	double rate; /* bytes a second; < 0: unknown */
};

/* ---- reading ---- */

static void reading_free(struct reading *r)
{
	for (size_t i = 0; i < r->n; i++) {
		free(r->file[i].path);
		free(r->file[i].dir);
		free(r->file[i].rank);
		free(r->file[i].wait);
	}
	free(r->file);
	*r = (struct reading){.n = 0};
}
#define CLEANUP_READING __attribute__((cleanup(reading_free)))

/* "rank 3" of __3_0.distcp, shard_rank3.pt, mp_rank_03_model.pt; else the name. malloc()ed. */
static char *rank_of(const char *name)
{
	const char *at = !strncmp(name, "__", 2) ? name + 2 : strstr(name, "rank");
	char *end, *out = NULL;

	if (at && *at == 'r')
		at += strlen("rank") + (at[4] == '_' || at[4] == '-');
	if (at && *at >= '0' && *at <= '9') {
		unsigned long n = strtoul(at, &end, 10);
		return asprintf(&out, "rank %lu", n) < 0 ? NULL : out;
	}
	return strdup(name);
}

static int take_file(const struct json_doc *d, int at, struct file *f)
{
	*f = (struct file){
		.path = json_bytes(d, json_at(d, at, "path")),
		.wait = json_bytes(d, json_at(d, at, "waits_for")),
		.bytes = json_u64(d, json_at(d, at, "bytes")),
		.persisted = json_u64(d, json_at(d, at, "persisted")),
	};
	const char *slash = f->path ? strrchr(f->path, '/') : NULL;

	f->dir = !slash ? strdup(".") : strndup(f->path, (size_t)(slash - f->path));
	f->rank = rank_of(slash ? slash + 1 : f->path ? f->path : "");
	return f->path && f->wait && f->dir && f->rank ? 0 : -ENOMEM;
}

static int by_rank(const void *a, const void *b)
{
	const struct file *x = a, *y = b;
	int order = strverscmp(x->dir, y->dir);

	order = order ? order : strverscmp(x->rank, y->rank);
	return order ? order : strcmp(x->path, y->path);
}

static int read_files(const struct location *p, struct reading *out)
{
	CLEANUP_FREE char *raw = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	size_t len;
	int err = read_small_file(p->root, ".cairn/files.json", FILES_MAX, &raw, &len);

	if (!err)
		err = json_parse(raw, len, &d);
	if (err)
		return err;
	int list = json_at(d, 0, "files"), n = json_count(d, list);

	*out = (struct reading){.file = calloc((size_t)n + 1, sizeof(struct file)),
				.more = json_u64(d, json_at(d, 0, "more")),
				.at = now_s()};
	if (!out->file)
		return -ENOMEM;
	for (int i = 0; !err && i < n; i++)
		err = take_file(d, json_item(d, list, i), &out->file[out->n++]);
	if (!err)
		qsort(out->file, out->n, sizeof(struct file), by_rank);
	return err;
}

static int need_files(const struct location *p, struct reading *out)
{
	int err = read_files(p, out);

	if (!err)
		return CAIRN_OK;
	if (err == -EACCES || err == -EPERM)
		complain("%s: only root and the user who mounted it may read this", p->top);
	else if (err == -ENOENT)
		complain("%s: its cairnfs is of an older version; unmount and mount it again",
			 p->top);
	else
		return complain_status(p, err);
	return CAIRN_FAILED;
}

/* ---- rows ---- */

/* What was written of f since; a file that is not in `old` is new. */
static uint64_t progress_of(const struct file *f, const struct reading *old)
{
	const struct file *was = bsearch(f, old->file, old->n, sizeof(struct file), by_rank);
	uint64_t before = was ? was->persisted : 0;

	return f->persisted > before ? f->persisted - before : 0;
}

/* The files of `old` in the same row that are durable now. */
static uint64_t finished(const struct row *r, const struct reading *now, const struct reading *old,
			 bool whole)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < old->n; i++) {
		const struct file *f = &old->file[i];

		if (strcmp(f->dir, r->file->dir) || (!whole && strcmp(f->rank, r->file->rank)))
			continue;
		if (!bsearch(f, now->file, now->n, sizeof(struct file), by_rank))
			sum += f->bytes - f->persisted;
	}
	return sum;
}

/* The row that begins at file `from`: of one directory (whole), or of one rank in it. */
static struct row row_at(const struct reading *now, const struct reading *old, size_t from,
			 bool whole)
{
	struct row r = {.file = &now->file[from], .rate = -1};
	uint64_t moved = 0;

	r.name = whole ? r.file->dir : r.file->rank;
	for (size_t i = from; i < now->n; i++, r.n++) {
		const struct file *f = &now->file[i];

		if (strcmp(f->dir, r.file->dir) || (!whole && strcmp(f->rank, r.file->rank)))
			break;
		r.bytes += f->bytes;
		r.persisted += f->persisted;
		moved += old->at ? progress_of(f, old) : 0;
	}
	if (old->at && now->at > old->at)
		r.rate = (double)(moved + finished(&r, now, old, whole)) / (now->at - old->at);
	return r;
}

/* Each once: "writer, disk". */
static void waits_of(const struct row *r, char buf[64])
{
	size_t len = 0;

	*buf = '\0';
	for (size_t i = 0; i < r->n; i++) {
		const char *w = r->file[i].wait;

		if (*w && !strstr(buf, w) && len + strlen(w) + 3 < 64)
			len += (size_t)snprintf(buf + len, 64 - len, "%s%s", len ? "," : "", w);
	}
}

/* "800.0 MiB/s", "0:01"; "-": not known */
static void rate_text(const struct row *r, char rate[40], char eta[32])
{
	char size[32];

	strcpy(rate, "-");
	strcpy(eta, "-");
	if (r->rate < 0)
		return;
	snprintf(rate, 40, "%s/s", human_bytes((uint64_t)r->rate, size));
	if (r->rate >= 1)
		human_time((double)(r->bytes - r->persisted) / r->rate, eta);
}

static void print_row(const struct row *r, bool whole)
{
	bool wide = screen_columns(stdout) >= WIDE;
	CLEANUP_FREE char *name = one_line(r->name, NAME_COLUMNS - (whole ? 0 : 2));
	char staged[32], persisted[32], rate[40], eta[32], waits[64];

	human_bytes(r->bytes, staged);
	human_bytes(r->persisted, persisted);
	rate_text(r, rate, eta);
	waits_of(r, waits);
	if (wide) {
		printf("%s%-*s %10s %10s %12s %7s %.12s\n", whole ? "" : "  ",
		       NAME_COLUMNS - (whole ? 0 : 2), name ? name : "-", staged, persisted, rate,
		       eta, whole ? "" : waits);
		return;
	}
	printf("%s%s\n", whole ? "" : "  ", name ? name : "-");
	print_line("", "%s of %s, %s, ETA %s%s%s", persisted, staged, rate, eta, whole ? "" : ", ",
		   whole ? "" : waits);
}

static void print_rows(const struct reading *now, const struct reading *old)
{
	if (screen_columns(stdout) >= WIDE)
		printf("%-*s %10s %10s %12s %7s %s\n", NAME_COLUMNS, "CHECKPOINT, RANK", "STAGED",
		       "PERSISTED", "RATE", "ETA", "WAITS FOR");
	for (size_t i = 0; i < now->n;) {
		struct row whole = row_at(now, old, i, true);
		size_t end = i + whole.n;
		unsigned shown = 0;

		print_row(&whole, true);
		for (; i < end && shown < SHOWN_MAX; shown++) {
			struct row rank = row_at(now, old, i, false);

			print_row(&rank, false);
			i += rank.n;
		}
		if (i < end)
			printf("  and %zu files more\n", end - i);
		i = end;
	}
	if (now->more)
		printf("and %llu files that are not listed\n", (unsigned long long)now->more);
}

/* ---- JSON ---- */

static void put_row(struct json_out *j, const struct row *r, const char *key)
{
	json_put_path(j, key, r->name);
	json_put_u64(j, "files", r->n);
	json_put_u64(j, "bytes", r->bytes);
	json_put_u64(j, "persisted", r->persisted);
	json_put_i64(j, "bytes_per_s", r->rate < 0 ? -1 : (int64_t)r->rate);
}

static void print_json(const struct reading *now, const struct reading *old)
{
	struct json_out j;

	json_begin(&j, stdout);
	json_open(&j, NULL, '{');
	json_open(&j, "checkpoints", '[');
	for (size_t i = 0; i < now->n;) {
		struct row whole = row_at(now, old, i, true);
		size_t end = i + whole.n;

		json_open(&j, NULL, '{');
		put_row(&j, &whole, "path");
		json_open(&j, "ranks", '[');
		while (i < end) {
			struct row rank = row_at(now, old, i, false);
			char waits[64];

			json_open(&j, NULL, '{');
			put_row(&j, &rank, "rank");
			waits_of(&rank, waits);
			json_put_string(&j, "waits_for", waits);
			json_close(&j, '}');
			i += rank.n;
		}
		json_close(&j, ']');
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_put_u64(&j, "not_listed", now->more);
	json_close(&j, '}');
}

/* ---- the command ---- */

static int show(const struct location *p, bool once, bool json)
{
	CLEANUP_READING struct reading old = {.n = 0};
	int code;

	for (bool first = true;; first = false) {
		CLEANUP_READING struct reading now = {.n = 0};

		code = need_files(p, &now);
		if (code)
			return code;
		/* a rate needs two readings */
		bool again = first && now.n;
		if (!again && !json) {
			fputs(!once && isatty(STDOUT_FILENO) ? "\033[H\033[J" : "", stdout);
			if (now.n)
				print_rows(&now, &old);
			else
				puts("no file waits to be durable");
		}
		if (!again && json)
			print_json(&now, &old);
		if (!again && (once || fflush(stdout)))
			return CAIRN_OK;
		reading_free(&old);
		old = now;
		now = (struct reading){.n = 0};
		watch_answered();
		sleep_s(again ? SAMPLE_S : 1);
	}
}

int cmd_top(int argc, char **argv)
{
	static const struct option opts[] = {
		{"once", no_argument, NULL, 'o'},
		{"json", no_argument, NULL, 'j'},
		{0},
	};
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	bool once = false, json = false;
	int c, code;

	while ((c = getopt_long(argc, argv, "oj", opts, NULL)) != -1) {
		if (c == 'o')
			once = true;
		else if (c == 'j')
			once = json = true;
		else
			return complain_option("top", argv);
	}
	code = need_mount("top", argc - optind, argv + optind, &p);
	return code ? code : show(&p, once, json);
}
