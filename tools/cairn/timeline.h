/* SPDX-License-Identifier: MIT
 *
 * What cairnfs recorded of past saves (staging/drain/timeline.c), by checkpoint. Times are in
 * milliseconds since 1970.
 */
#ifndef CAIRN_TIMELINE_H
#define CAIRN_TIMELINE_H

#include "tools/cairn/base/cli.h"

#define SAVE_WAITS 6
extern const char *const save_wait_name[SAVE_WAITS];

struct span {
	uint64_t from, to;
};

/* A version of a file, or of several small ones. */
struct part {
	char *path; /* below the store */
	uint64_t files, bytes;
	uint64_t created, closed, durable;
	uint64_t wait[SAVE_WAITS];
};

/* A checkpoint: what has one name directly below the directory asked for, saved at one time. */
struct save {
	const char *path; /* of its first part */
	size_t len; /* of that, the checkpoint's */
	const struct part **part;
	size_t n;
	uint64_t files, bytes;
	uint64_t created, closed, durable;
	uint64_t wait[SAVE_WAITS]; /* in which any part of it waited */
};

struct saves {
	struct part *part;
	size_t n_parts;
	struct save *save; /* by time */
	size_t n;
};

/* Of what is below p. 0, -ENOMEM, or as open(2) of the record. */
int saves_read(const struct location *p, struct saves *out);
void saves_free(struct saves *s);
/* When the part waited for it. */
struct span part_wait(const struct part *p, unsigned wait);
char *save_name(const struct save *s); /* malloc()ed; NULL: no memory */

/* "disk 5.900 s, hold 2.000 s", the longest first; false: it waited for nothing. */
#define SAVE_WAITS_ROOM 256
bool save_waits(const struct save *s, char buf[SAVE_WAITS_ROOM]);
/* A wait of the one who writes the file: before its close, or in fsync. */
bool save_is_writers(unsigned wait);

/* timeline_html.c: the page, the newest first */
void saves_html(const struct saves *all, const char *title, FILE *f);

#endif
