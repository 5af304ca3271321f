/* SPDX-License-Identifier: MIT
 *
 * Labelled lines that fit the screen: words are wrapped, and a word, or a path, that is longer than
 * a line is shortened in the middle.
 */
#include "cli.h"
#include "io/number.h"

#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>

#define COLUMNS_DEFAULT 80u
#define COLUMNS_MIN 40u
#define LABEL_COLUMNS 13u /* "  label      " */
#define CUT "..."

unsigned screen_columns(FILE *f)
{
	const char *asked = getenv("COLUMNS");
	uint64_t n = asked ? number_or_0(asked) : 0;
	struct winsize w;

	if (!n && isatty(fileno(f)) && !ioctl(fileno(f), TIOCGWINSZ, &w))
		n = w.ws_col;
	return !n ? COLUMNS_DEFAULT : n < COLUMNS_MIN ? COLUMNS_MIN : n > 4096 ? 4096 : (unsigned)n;
}

/* Of valid UTF-8. From U+1100 on characters may take two columns. */
static unsigned columns_of(const char *s, size_t len)
{
	unsigned n = 0;

	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)s[i];

		if ((c & 0xc0) != 0x80)
			n += c < 0xe1 || (c == 0xe1 && (unsigned char)s[i + 1] < 0x84) ? 1 : 2;
	}
	return n;
}

/* The start of s that takes at most n columns: its length. */
static size_t first_columns(const char *s, size_t len, unsigned n)
{
	size_t fits = 0;

	for (size_t i = 1; i <= len && columns_of(s, i) <= n; i++)
		if (i == len || (s[i] & 0xc0) != 0x80)
			fits = i;
	return fits;
}

/* The end of s that takes at most n columns: where it begins. */
static size_t last_columns(const char *s, size_t len, unsigned n)
{
	size_t from = len;

	for (size_t i = len; i-- > 0 && columns_of(s + i, len - i) <= n;)
		if ((s[i] & 0xc0) != 0x80)
			from = i;
	return from;
}

static void print_cut(FILE *f, const char *s, size_t len, unsigned columns)
{
	unsigned head = (columns - (unsigned)strlen(CUT)) / 2;

	if (columns_of(s, len) <= columns) {
		fwrite(s, 1, len, f);
		return;
	}
	size_t from = last_columns(s, len, columns - (unsigned)strlen(CUT) - head);

	fwrite(s, 1, first_columns(s, len, head), f);
	fputs(CUT, f);
	fwrite(s + from, 1, len - from, f);
}

char *one_line(const char *name, unsigned columns)
{
	CLEANUP_FREE char *plain = NULL;
	char *out = NULL;
	size_t len, out_len;
	FILE *f = open_memstream(&plain, &len);

	if (!f)
		return NULL;
	print_escaped(f, name);
	if (fclose(f) || !(f = open_memstream(&out, &out_len)))
		return NULL;
	print_cut(f, plain, len, columns);
	if (!fclose(f))
		return out;
	free(out);
	return NULL;
}

char *name_in_line(const char *name)
{
	return one_line(name, screen_columns(stdout) - LABEL_COLUMNS);
}

static void print_wrapped(FILE *f, const char *s, unsigned indent, unsigned columns)
{
	unsigned at = 0;

	while (*(s += strspn(s, " "))) {
		size_t len = strcspn(s, " ");
		unsigned n = columns_of(s, len);

		n = n > columns ? columns : n;
		if (at && at + 1 + n > columns) {
			fprintf(f, "\n%*s", (int)indent, "");
			at = 0;
		}
		if (at)
			fputc(' ', f);
		print_cut(f, s, len, columns);
		at += n + (at > 0);
		s += len;
	}
	fputc('\n', f);
}

void print_line(const char *label, const char *fmt, ...)
{
	const unsigned indent = label ? LABEL_COLUMNS : 4;
	CLEANUP_FREE char *text = NULL, *plain = NULL;
	size_t len;
	va_list ap;

	va_start(ap, fmt);
	int n = vasprintf(&text, fmt, ap);
	va_end(ap);
	FILE *f = n < 0 ? NULL : open_memstream(&plain, &len);
	if (!f)
		return;
	print_escaped(f, text);
	if (fclose(f))
		return;
	if (label)
		printf("  %-10s ", label);
	print_wrapped(stdout, plain, indent, screen_columns(stdout) - indent);
}

const char *count_of(unsigned long long n, const char *what, char buf[COUNT_ROOM])
{
	snprintf(buf, COUNT_ROOM, "%llu %s%s", n, what, n == 1 ? "" : "s");
	return buf;
}
