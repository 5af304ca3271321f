/* SPDX-License-Identifier: MIT
 * The mounts of a process, from its mountinfo. */
#include "io/mounts/mounts.h"
#include "io/scope.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "\040" and its like back into bytes; in place. */
static void unescape(char *s)
{
	char *o = s;

	for (; *s; o++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
		    s[3] >= '0' && s[3] <= '7') {
			*o = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
			s += 4;
		} else {
			*o = *s++;
		}
	}
	*o = '\0';
}

/* 36 35 98:0 /root /point options [optional ...] - fstype source options */
static int parse_mount(char *line, struct io_mount *m)
{
	char *word[6] = {0}, *rest = strstr(line, " - "), *fstype, *source, *save;

	*m = (struct io_mount){0};
	if (!rest)
		return -EINVAL;
	*rest = '\0';
	rest += 3;
	word[0] = strtok_r(line, " ", &save);
	for (int i = 1; i < 6 && word[i - 1]; i++)
		word[i] = strtok_r(NULL, " ", &save);
	fstype = strtok_r(rest, " ", &save);
	source = strtok_r(NULL, " ", &save);
	if (!word[4] || !fstype || sscanf(word[2], "%u:%u", &m->dev_major, &m->dev_minor) != 2)
		return -EINVAL;
	m->id = atoi(word[0]);
	m->parent = atoi(word[1]);
	m->root = strdup(word[3]);
	m->point = strdup(word[4]);
	m->fstype = strdup(fstype);
	m->source = strdup(source ? source : "");
	if (!m->root || !m->point || !m->fstype || !m->source)
		return -ENOMEM;
	unescape(m->root);
	unescape(m->point);
	unescape(m->source);
	return 0;
}

static void mount_free(struct io_mount *m)
{
	free(m->root);
	free(m->point);
	free(m->fstype);
	free(m->source);
}

int io_mounts_read(const char *path, struct io_mounts *out)
{
	FILE *f = fopen(path, "re");
	CLEANUP_FREE char *line = NULL;
	size_t cap = 0;
	int err = 0;

	*out = (struct io_mounts){0};
	if (!f)
		return -errno;
	while (!err && getline(&line, &cap, f) > 0) {
		struct io_mount *v = reallocarray(out->v, out->n + 1, sizeof(*v));

		if (!v) {
			err = -ENOMEM;
			break;
		}
		out->v = v;
		line[strcspn(line, "\n")] = '\0';
		err = parse_mount(line, &v[out->n]);
		if (err == 0)
			out->n++;
		else
			mount_free(&v[out->n]);
		if (err == -EINVAL)
			err = 0; /* a line in a later kernel's format: ignored */
	}
	fclose(f);
	if (err)
		io_mounts_free(out);
	return err;
}

void io_mounts_free(struct io_mounts *m)
{
	for (size_t i = 0; i < m->n; i++)
		mount_free(&m->v[i]);
	free(m->v);
	*m = (struct io_mounts){0};
}
