/* SPDX-License-Identifier: MIT
 *
 * Numbers and sizes in text: digits only, where strtoull(3) also takes blanks and a sign.
 */
#ifndef CAIRN_IO_NUMBER_H
#define CAIRN_IO_NUMBER_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The digits at *text, which is moved behind them. False: there are none, or the number is too
 * large. */
static inline bool number_next(const char **text, uint64_t *out)
{
	char *end;

	if (**text < '0' || **text > '9')
		return false;
	errno = 0;
	*out = strtoull(*text, &end, 10);
	*text = end;
	return !errno;
}

/* Whether all of text is a number. */
static inline bool number_is(const char *text, uint64_t *out)
{
	return number_next(&text, out) && !*text;
}

/* The number that all of text is; otherwise 0. */
static inline uint64_t number_or_0(const char *text)
{
	uint64_t v;

	return number_is(text, &v) ? v : 0;
}

/* The number that text begins with; otherwise 0. */
static inline uint64_t number_first(const char *text)
{
	uint64_t v;

	return number_next(&text, &v) ? v : 0;
}

/* A number of bytes, or of KiB, MiB, ... ("4G", "4g") at *text, which is moved behind it. */
static inline bool number_next_size(const char **text, uint64_t *out)
{
	static const char units[] = "KkMmGgTt";

	if (!number_next(text, out))
		return false;
	const char *unit = **text ? strchr(units, **text) : NULL;
	if (!unit)
		return true;
	unsigned shift = 10 * (unsigned)((unit - units) / 2 + 1);
	++*text;
	if (*out > UINT64_MAX >> shift)
		return false;
	*out <<= shift;
	return true;
}

#endif
