/* SPDX-License-Identifier: MIT
 * Options that are not ours go to libfuse. What it does not know either is refused here, by its name, before
 * anything is touched; a name that looks like one we know is told. */
#include "fs/process/options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define OPTION_MAX 32u		/* a longer name is like none that we know */
#define DISTANCE_MAX 2u
#define BEGIN_MIN 3u		/* as many bytes alike say that one name is meant to be the other */

static char said[160];	/* what libfuse says of the option */

static void keep_said(enum fuse_log_level level, const char *fmt, va_list ap)
{
	size_t len = strlen(said);
	(void)level;
	vsnprintf(said + len, sizeof(said) - len, fmt, ap);
}

/* Does libfuse take it? What it has to say, in one line, is in `said`. */
static bool libfuse_takes(const char *opt)
{
	static const struct fuse_lowlevel_ops none;
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_session *se = NULL;

	said[0] = 0;
	fuse_set_log_func(keep_said);
	if (!fuse_opt_add_arg(&args, "cairnfs") && !fuse_opt_add_arg(&args, "-o") && !fuse_opt_add_arg(&args, opt))
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

/* Levenshtein's distance of two names of at most OPTION_MAX bytes. */
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

/* "atime" is not meant to be "noatime". */
static bool is_opposite(const char *a, size_t n, const char *b, size_t m)
{
	return m == n + 2 ? !strncmp(b, "no", 2) && !strncmp(b + 2, a, n) :
	       n == m + 2 && !strncmp(a, "no", 2) && !strncmp(a + 2, b, m);
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
		if (d < least && 2 * d < n && !is_opposite(opt, n, name, m)) {	/* two bytes are most of a short name */
			least = d;
			near = name;
		}
		if (m > alike && begins_alike(opt, n, name, m)) {	/* the longest: staging_directory is staging_dir */
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
		fprintf(stderr, "cairnfs: unknown option -o %s; did you mean %s? See cairnfs --help\n", opt, near);
	else
		fprintf(stderr, "cairnfs: unknown option -o %s; cairnfs --help lists the options\n", opt);
	return -EINVAL;
}
