/* SPDX-License-Identifier: MIT
 * Unknown options go to libfuse. Those that libfuse refuses are reported here by name, before
 * anything is changed, with a similar known name if there is one.
 */
#include "fs/process/options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define OPTION_MAX 32u /* longer names resemble none in the table */
#define DISTANCE_MAX 2u
#define BEGIN_MIN 3u /* so many equal bytes in front suggest a misspelling */

static char said[160]; /* libfuse's message */

static void keep_said(enum fuse_log_level level, const char *fmt, va_list ap)
{
	size_t len = strlen(said);
	(void)level;
	vsnprintf(said + len, sizeof(said) - len, fmt, ap);
}

/* Whether libfuse takes it; its message, in one line, goes to `said`. */
static bool libfuse_takes(const char *opt)
{
	static const struct fuse_lowlevel_ops none;
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_session *se = NULL;

	said[0] = 0;
	fuse_set_log_func(keep_said);
	if (!fuse_opt_add_arg(&args, "cairnfs") && !fuse_opt_add_arg(&args, "-o") &&
	    !fuse_opt_add_arg(&args, opt))
		se = fuse_session_new(&args, &none, sizeof(none), NULL);
	fuse_set_log_func(NULL);
	fuse_opt_free_args(&args);
	if (se)
		fuse_session_destroy(se);
	said[strcspn(said, "\n")] = 0;
	return se;
}

static size_t name_len(const char *opt)
{
	return strcspn(opt, "=");
}

/* The Levenshtein distance of two names of at most OPTION_MAX bytes. */
static unsigned distance(const char *a, size_t n, const char *b, size_t m)
{
	unsigned row[OPTION_MAX + 1];

	for (unsigned j = 0; j <= m; j++)
		row[j] = j;
	for (unsigned i = 1; i <= n; i++) {
		unsigned diagonal = row[0];
		row[0] = i;
		for (unsigned j = 1; j <= m; j++) {
			unsigned change = diagonal + (a[i - 1] != b[j - 1]);
			diagonal = row[j];
			row[j] = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
			row[j] = row[j] < change ? row[j] : change;
		}
	}
	return row[m];
}

/* Whether one is "no" and the other: "atime" is not a misspelt "noatime". */
static bool is_opposite(const char *a, size_t n, const char *b, size_t m)
{
	return m == n + 2 ? !strncmp(b, "no", 2) && !strncmp(b + 2, a, n)
			  : n == m + 2 && !strncmp(a, "no", 2) && !strncmp(a + 2, b, m);
}

static bool begins_alike(const char *a, size_t n, const char *b, size_t m)
{
	size_t least = n < m ? n : m;
	return least >= BEGIN_MIN && !strncmp(a, b, least);
}

static const char *option_near(const char *opt)
{
	size_t n = name_len(opt), alike = 0;
	unsigned least = DISTANCE_MAX + 1;
	const char *near = NULL, *begins = NULL, *name;

	if (n > OPTION_MAX)
		return NULL;
	for (unsigned i = 0; (name = options_name(i)); i++) {
		size_t m = name_len(name);
		unsigned d = distance(opt, n, name, m);
		/* two bytes are a large part of a short name */
		if (d < least && 2 * d < n && !is_opposite(opt, n, name, m)) {
			least = d;
			near = name;
		}
		/* the longest: for staging_directory, staging_dir */
		if (m > alike && begins_alike(opt, n, name, m)) {
			alike = m;
			begins = name;
		}
	}
	return near ? near : begins;
}

int options_refuse_unknown(const char *opt)
{
	const char *near;

	if (libfuse_takes(opt))
		return 0;
	near = option_near(opt);
	if (!strstr(said, "unknown option"))
		fprintf(stderr, "cairnfs: -o %s: %s\n", opt, said[0] ? said : strerror(ENOMEM));
	else if (near)
		fprintf(stderr,
			"cairnfs: unknown option -o %s; did you mean %s? See cairnfs --help\n", opt,
			near);
	else
		fprintf(stderr, "cairnfs: unknown option -o %s; cairnfs --help lists the options\n",
			opt);
	return -EINVAL;
}
