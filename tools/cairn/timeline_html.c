/* SPDX-License-Identifier: MIT
 *
 * The timeline as one page: a bar for each file from its create to durable, and what it waited
 * for.
 * Nothing is loaded from elsewhere.
 */
#include "timeline.h"

#include <string.h>
#include <time.h>

#define LABEL_PX 220 /* of names, to the left */
#define CHART_PX 720
#define ROW_PX 18
#define ROWS_MAX 64u /* files of one checkpoint; those that were durable last */
#define SAVES_SHOWN 100u

static const char style[] =
	":root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--dim:#656d76;--line:#d0d7de;"
	"--write:#9aa4af}\n"
	"@media(prefers-color-scheme:dark){:root{--fg:#e6edf3;--bg:#0d1117;--dim:#8d96a0;"
	"--line:#30363d;--write:#57606a}}\n"
	"body{font:14px system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:2em;"
	"max-width:980px}\n"
	"h2{font-size:16px;margin:1.6em 0 .2em}p{margin:.2em 0;color:var(--dim)}"
	"b{color:var(--fg)}svg{display:block;width:100%;height:auto}\n"
	"text{font:11px system-ui,sans-serif;fill:var(--fg)}.dim{fill:var(--dim)}"
	".axis{stroke:var(--line)}\n"
	".write{fill:var(--write)}.admission{fill:#8250df}.spill{fill:#cf222e}"
	".fsync{fill:#bf8700}.lease{fill:#1a7f37}.hold{fill:#e16f24}.disk{fill:#0969da}\n"
	".key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}";

/* Names are untrusted: what HTML gives a meaning is written as a number. */
static void put_text(FILE *f, const char *s)
{
	CLEANUP_FREE char *plain = NULL;
	size_t len;
	FILE *m = open_memstream(&plain, &len);

	if (!m)
		return;
	print_escaped(m, s);
	if (fclose(m))
		return;
	for (const char *c = plain; *c; c++)
		if (strchr("<>&\"'", *c))
			fprintf(f, "&#%d;", *c);
		else
			putc(*c, f);
}

static double x_of(const struct save *s, uint64_t ms)
{
	uint64_t all = s->durable - s->created;
	double at = ms > s->created ? (double)(ms - s->created) : 0;

	at = at > (double)all ? (double)all : at;
	return LABEL_PX + at / (double)(all ? all : 1) * CHART_PX;
}

static void put_bar(FILE *f, const struct save *s, const char *kind, struct span t, size_t row,
		    int top, int height)
{
	double from = x_of(s, t.from), to = x_of(s, t.to);

	fprintf(f,
		"<rect class=\"%s\" x=\"%.1f\" y=\"%zu\" width=\"%.1f\" height=\"%d\">"
		"<title>%s %.3f s</title></rect>\n",
		kind, from, row * ROW_PX + (size_t)top, to - from < 1 ? 1 : to - from, height, kind,
		(double)(t.to - t.from) / 1e3);
}

/* Written above; below, what it waited for. */
static void put_part(FILE *f, const struct save *s, const struct part *p, size_t row)
{
	const char *name = strlen(p->path) > s->len ? p->path + s->len + 1 : p->path;
	CLEANUP_FREE char *label = one_line(name, 30);

	fprintf(f, "<text x=\"0\" y=\"%zu\">", row * ROW_PX + 12);
	put_text(f, label ? label : "-");
	if (p->files > 1)
		fprintf(f, " and %llu more", (unsigned long long)p->files - 1);
	fputs("</text>\n", f);
	put_bar(f, s, "write", (struct span){p->created, p->closed}, row, 2, 6);
	for (unsigned w = 0; w < SAVE_WAITS; w++) {
		struct span t = part_wait(p, w);
		bool beside = save_is_writers(w);

		if (p->wait[w])
			put_bar(f, s, save_wait_name[w], t, row, beside ? 2 : 8, 6);
	}
}

static void put_axis(FILE *f, const struct save *s, size_t rows)
{
	double all = (double)(s->durable - s->created) / 1e3;

	for (int i = 0; i <= 4; i++) {
		int x = LABEL_PX + CHART_PX * i / 4;

		fprintf(f,
			"<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"0\" y2=\"%zu\"/>"
			"<text class=\"dim\" x=\"%d\" y=\"%zu\" text-anchor=\"%s\">%.2f s</text>\n",
			x, x, rows * ROW_PX, x, rows * ROW_PX + 12, i == 4 ? "end" : "middle",
			all * i / 4);
	}
}

static void put_summary(FILE *f, const struct save *s)
{
	CLEANUP_FREE char *path = save_name(s);
	time_t at = (time_t)(s->created / 1000);
	char when[32] = "", bytes[32], n[COUNT_ROOM], waits[SAVE_WAITS_ROOM];
	struct tm tm;

	if (localtime_r(&at, &tm))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
	fputs("<h2>", f);
	put_text(f, path ? path : "-");
	fprintf(f, "</h2><p>%s: %s, %s, written in <b>%.3f s</b>, durable after <b>%.3f s</b>",
		when, count_of(s->files, "file", n), human_bytes(s->bytes, bytes),
		(double)(s->closed - s->created) / 1e3, (double)(s->durable - s->created) / 1e3);
	if (save_waits(s, waits))
		fprintf(f, "; waited for <b>%s</b>", waits);
	fputs("</p>\n", f);
}

static void put_save(FILE *f, const struct save *s)
{
	size_t rows = s->n < ROWS_MAX ? s->n : ROWS_MAX, first = s->n - rows;

	put_summary(f, s);
	if (first)
		fprintf(f, "<p>The last %zu of %zu:</p>\n", rows, s->n);
	fprintf(f, "<svg viewBox=\"0 0 %d %zu\" role=\"img\">\n", LABEL_PX + CHART_PX,
		rows * ROW_PX + 16);
	put_axis(f, s, rows);
	for (size_t i = 0; i < rows; i++)
		put_part(f, s, s->part[first + i], i);
	fputs("</svg>\n", f);
}

void saves_html(const struct saves *all, const char *title, FILE *f)
{
	size_t shown = all->n < SAVES_SHOWN ? all->n : SAVES_SHOWN;

	fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", f);
	put_text(f, title);
	fprintf(f, "</title><style>\n%s\n</style></head><body>\n<p>", style);
	fputs("<i class=\"key\" style=\"background:var(--write)\"></i>written", f);
	for (unsigned w = 0; w < SAVE_WAITS; w++)
		fprintf(f,
			"<svg class=\"key\" viewBox=\"0 0 1 1\"><rect class=\"%s\" width=\"1\" "
			"height=\"1\"/></svg>%s",
			save_wait_name[w], save_wait_name[w]);
	fputs("</p>\n", f);
	for (size_t i = 0; i < shown; i++) /* the newest first */
		put_save(f, &all->save[all->n - 1 - i]);
	fputs("</body></html>\n", f);
}
