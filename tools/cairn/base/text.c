/* SPDX-License-Identifier: MIT
 *
 * Text for people: sizes, times, the progress bar.
 */
#include "cli.h"
#include "io/number.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

double now_s(void)
{
	return (double)monotonic_ns() / 1e9;
}

void sleep_s(double s)
{
	if (s > 0)
		sleep_ms((uint64_t)(s * 1e3));
}

char *put_number(char *p, uint64_t n)
{
	char digits[20];
	size_t i = sizeof(digits);

	do
		digits[--i] = (char)('0' + n % 10);
	while (n /= 10);
	memcpy(p, digits + i, sizeof(digits) - i);
	p += sizeof(digits) - i;
	*p = '\0';
	return p;
}

/* n / 2^shift in tenths, rounded. */
static uint64_t in_tenths(uint64_t n, unsigned shift)
{
	const uint64_t one = 1ull << shift, x = (n & (one - 1)) * 10, rest = x & (one - 1);
	uint64_t tenths = x >> shift;

	tenths += rest > one / 2 || (rest == one / 2 && tenths % 2); /* as printf(3) does */
	return (n >> shift) * 10 + tenths;
}

const char *human_bytes(uint64_t n, char buf[32])
{
	static const char unit[] = "KMGTPE";
	unsigned u = 0, shift = 10;
	uint64_t tenths;

	if (n < 1024) {
		memcpy(put_number(buf, n), " B", 3);
		return buf;
	}
	/* 1023.96 would round to "1024.0": use the next unit */
	while ((tenths = in_tenths(n, shift)) >= 10240 && u < 5) {
		u++;
		shift += 10;
	}
	memcpy(put_number(buf, tenths / 10),
	       (char[]){'.', (char)('0' + tenths % 10), ' ', unit[u], 'i', 'B', '\0'}, 7);
	return buf;
}

const char *human_time(double s, char buf[32])
{
	unsigned long t = s < 0 ? 0 : s > 1e9 ? 1000000000ul : (unsigned long)(s + 0.5);

	if (t >= 3600)
		snprintf(buf, 32, "%lu:%02lu:%02lu", t / 3600, t / 60 % 60, t % 60);
	else
		snprintf(buf, 32, "%lu:%02lu", t / 60, t % 60);
	return buf;
}

void print_escaped(FILE *f, const char *name)
{
	for (size_t len; *name; name += len) {
		const unsigned char *u = (const unsigned char *)name;

		len = fmt_utf8(name, strnlen(name, 4));
		/* control characters, including U+0080 to U+009F; and invalid UTF-8 */
		if (!len || *u < 0x20 || *u == 0x7f || (*u == 0xc2 && u[1] < 0xa0)) {
			len = 1;
			fprintf(f, "\\x%02x", *u);
		} else {
			fwrite(name, 1, len, f);
		}
	}
}

void print_name(FILE *f, const char *name)
{
	/* cached: isatty() is a system call, and listings print many names */
	static FILE *asked;
	static bool tty;

	if (asked != f)
		tty = isatty(fileno(f));
	asked = f;
	if (tty) {
		print_escaped(f, name);
		return;
	}
	for (size_t len; *name; name += len) {
		len = strcspn(name, "\n");
		fwrite(name, 1, len, f);
		if (name[len])
			fprintf(f, "\\x%02x", name[len++]);
	}
}

int parse_bytes(const char *s, uint64_t *out)
{
	return number_next_size(&s, out) && (!*s || !strcmp(s, "iB") || !strcmp(s, "B")) ? 0
											 : -EINVAL;
}

int parse_duration(const char *s, double *out)
{
	char *end;
	double d, unit = 1;

	if (!((*s >= '0' && *s <= '9') || *s == '.')) /* strtod() also takes " -inf" */
		return -EINVAL;
	errno = 0;
	d = strtod(s, &end);
	if (*end && !end[1]) {
		unit = *end == 's' ? 1 : *end == 'm' ? 60 : *end == 'h' ? 3600 : 0;
		end++;
	}
	if (errno || *end || unit == 0 || !isfinite(d * unit) || d < 0 || strpbrk(s, "xX"))
		return -EINVAL;
	*out = d * unit;
	return 0;
}

/* ---- progress ------------------------------------------------------------------ */

#define SHOW_EVERY_S 0.2 /* on a terminal */
#define TELL_EVERY_S 10.0 /* elsewhere */
#define SAMPLE_EVERY_S 0.5
#define BAR_CELLS 16

void progress_start(struct progress *p, const char *label, bool quiet)
{
	double t = now_s();

	*p = (struct progress){
		.f = stderr,
		.label = label,
		.quiet = quiet,
		.tty = isatty(STDERR_FILENO),
		.start = t,
		.last_show = t,
		.last_sample = t,
	};
	if (p->tty)
		p->last_show = 0;
}

static void sample(struct progress *p, double t)
{
	double dt = t - p->last_sample, now;

	if (dt < SAMPLE_EVERY_S)
		return;
	now = (double)(p->done - p->sample_done) / dt;
	p->rate = p->rate > 0 ? 0.6 * p->rate + 0.4 * now : now;
	p->sample_done = p->done;
	p->last_sample = t;
}

static unsigned columns(void)
{
	struct winsize w;

	return !ioctl(STDERR_FILENO, TIOCGWINSZ, &w) && w.ws_col ? w.ws_col : 80;
}

/* "1.2 GiB of 3.0 GiB, 1.9 GiB/s, ETA 0:01" */
static void numbers(const struct progress *p, char *out, size_t cap)
{
	char a[32], b[32], c[32], d[32];
	size_t n;

	n = (size_t)snprintf(out, cap, "%s of %s", human_bytes(p->done, a),
			     human_bytes(p->done + p->left, b));
	if (p->rate >= 1 && n < cap)
		snprintf(out + n, cap - n, ", %s/s, ETA %s", human_bytes((uint64_t)p->rate, c),
			 human_time((double)p->left / p->rate, d));
}

static void show_bar(struct progress *p, const char *note)
{
	uint64_t all = p->done + p->left;
	unsigned pct = all ? (unsigned)((double)p->done * 100 / (double)all) : 0;
	unsigned full = all ? (unsigned)((double)p->done * BAR_CELLS / (double)all) : 0;
	char bar[BAR_CELLS + 1], text[256], *line;
	unsigned width = columns() - 1;

	memset(bar, '.', BAR_CELLS);
	memset(bar, '#', full > BAR_CELLS ? BAR_CELLS : full);
	bar[BAR_CELLS] = '\0';
	numbers(p, text, sizeof(text));
	if (asprintf(&line, "[%s] %3u%%  %s  %s (%s)", bar, pct, text, p->label, note) < 0)
		return;
	fprintf(p->f, "\r\033[K%.*s", (int)width, line);
	fflush(p->f);
	free(line);
}

static void show(struct progress *p, const char *note)
{
	double t = now_s();
	char text[256];

	sample(p, t);
	if (p->quiet || t - p->last_show < (p->tty ? SHOW_EVERY_S : TELL_EVERY_S))
		return;
	p->last_show = t;
	p->shown = true;
	if (p->tty) {
		show_bar(p, note);
		return;
	}
	numbers(p, text, sizeof(text));
	fprintf(p->f, "cairn: %s: %s (%s)\n", p->label, text, note);
}

void progress_left(struct progress *p, uint64_t left, const char *note)
{
	if (left < p->left)
		p->done += p->left - left;
	p->left = left;
	show(p, note);
}

void progress_done(struct progress *p, uint64_t done, uint64_t total, const char *note)
{
	p->done = done;
	p->left = total > done ? total - done : 0;
	show(p, note);
}

void progress_end(struct progress *p)
{
	if (p->tty && p->shown) {
		fputs("\r\033[K", p->f);
		fflush(p->f);
	}
	p->shown = false;
}
