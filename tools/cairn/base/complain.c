/* SPDX-License-Identifier: MIT
 *
 * Messages on stderr: a line each.
 */
#include "cli.h"

#include <getopt.h>
#include <stdarg.h>
#include <string.h>

/* Names in it may be anybody's: they must not control the terminal. */
static void complain_text(const char *fmt, va_list ap)
{
	CLEANUP_FREE char *text = NULL;

	if (vasprintf(&text, fmt, ap) < 0) {
		text = NULL;
		return;
	}
	print_escaped(stderr, text);
}

void complain(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fputs("cairn: ", stderr);
	va_start(ap, fmt);
	complain_text(fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

int complain_usage(const char *sub, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "cairn %s: ", sub);
	va_start(ap, fmt);
	complain_text(fmt, ap);
	va_end(ap);
	fprintf(stderr, "; see `cairn help %s`\n", sub);
	return CAIRN_USAGE;
}

int complain_option(const char *sub, char **argv)
{
	const char *next = argv[optind];

	/* of -ab, where a is bad, getopt() has not passed the word yet */
	if (next && next[0] == '-' && next[1] != '-' && optopt && strchr(next, optopt))
		return complain_usage(sub, "bad option or missing value: -%c", optopt);
	return complain_usage(sub, "bad option or missing value: %s", argv[optind - 1]);
}
