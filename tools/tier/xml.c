/* SPDX-License-Identifier: MIT */
#include "xml.h"

#include <stdlib.h>
#include <string.h>

#define ENTITY_MAX 12u /* of "&#1114111;", and some zeros */

/* The character as UTF-8; returns how many bytes. 0: there is no such one. */
static size_t put_utf8(unsigned long c, char out[4])
{
	static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
	size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

	if (!c || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return 0;
	for (size_t i = n; i-- > 1; c >>= 6)
		out[i] = (char)(0x80 | (c & 0x3f));
	out[0] = (char)(first[n == 1 ? 0 : n] | c);
	return n;
}

/* What the entity at `in`, of len bytes with & and ;, stands for. 0: not known. */
static size_t put_entity(const char *in, size_t len, char out[4])
{
	static const struct {
		const char *name;
		char c;
	} known[] = {
		{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
	bool hex = len > 3 && in[2] == 'x';
	char *end;
	unsigned long c;

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (len == strlen(known[i].name) && !memcmp(in, known[i].name, len)) {
			out[0] = known[i].c;
			return 1;
		}
	if (len < 4 || in[1] != '#' || !strchr("0123456789abcdefABCDEF", in[hex ? 3 : 2]))
		return 0;
	c = strtoul(in + (hex ? 3 : 2), &end, hex ? 16 : 10);
	return end == in + len - 1 ? put_utf8(c, out) : 0;
}

/* No entity is shorter than what it stands for. */
static size_t replace_entities(char *text, size_t len)
{
	size_t to = 0, more, n;

	for (size_t at = 0; at < len; at += more) {
		const char *end = NULL;
		char c[4];

		if (text[at] == '&')
			end = memchr(text + at, ';', len - at < ENTITY_MAX ? len - at : ENTITY_MAX);
		more = end ? (size_t)(end - (text + at)) + 1 : 1;
		n = end ? put_entity(text + at, more, c) : 0;
		if (n)
			memcpy(text + to, c, n);
		else
			memmove(text + to, text + at, n = more);
		to += n;
	}
	return to;
}

bool xml_text(char **at, const char *open, const char *close, char **text, size_t *len)
{
	char *from = strstr(*at, open), *to = from ? strstr(from, close) : NULL;

	if (!to)
		return false;
	*text = from + strlen(open);
	*len = replace_entities(*text, (size_t)(to - *text));
	*at = to;
	return true;
}
