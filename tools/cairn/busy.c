/* SPDX-License-Identifier: MIT
 *
 * Finds what keeps a mount busy: processes with a file, a directory or a mapping on it,
 * and mounts on top of it. It compares mount ids, so that no slow or dead filesystem
 * is accessed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "tools/cairn/base/cli.h"
#include "io/entries.h"

#define MAX_LINES 10

struct search {
	int mount_id;
	unsigned dev_major, dev_minor;
	FILE *f;
	int lines, more;
};

static bool link_is_on(int proc, const char *link, int mount_id)
{
	CLEANUP_CLOSE int fd = openat(proc, link, O_PATH | O_CLOEXEC);

	return fd >= 0 && mount_id_of(fd) == mount_id;
}

static FILE *open_text(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");

	if (!f && fd >= 0)
		close(fd);
	return f;
}

static bool has_descriptor(int proc, int mount_id)
{
	CLEANUP_DIR DIR *d = entries_at(proc, "fdinfo");
	struct dirent *e;
	bool found = false;

	while (!found && (e = entries_next(d))) {
		FILE *f = open_text(dirfd(d), e->d_name);
		char line[128];
		int id;

		while (f && !found && fgets(line, sizeof(line), f))
			found = sscanf(line, "mnt_id: %d", &id) == 1 && id == mount_id;
		if (f)
			fclose(f);
	}
	return found;
}

static bool has_mapping(int proc, const struct search *s)
{
	FILE *f = open_text(proc, "maps");
	CLEANUP_FREE char *line = NULL;
	size_t cap = 0;
	bool found = false;

	while (f && !found && getline(&line, &cap, f) > 0) {
		unsigned ma, mi;

		found = sscanf(line, "%*s %*s %*s %x:%x", &ma, &mi) == 2 && ma == s->dev_major &&
			mi == s->dev_minor;
	}
	if (f)
		fclose(f);
	return found;
}

static void tell(struct search *s, const char *who, const char *what)
{
	if (s->lines++ >= MAX_LINES) {
		s->more++;
		return;
	}
	fputs("  ", s->f);
	print_escaped(s->f, who); /* a process can choose any name */
	fprintf(s->f, " %s\n", what);
}

static void look_at(struct search *s, int all, const char *pid)
{
	CLEANUP_CLOSE int proc = openat(all, pid, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CLEANUP_FREE char *comm = NULL;
	const char *what = NULL;
	char who[300];
	size_t len;

	if (proc < 0)
		return;
	if (link_is_on(proc, "cwd", s->mount_id))
		what = "has its working directory there";
	else if (has_descriptor(proc, s->mount_id))
		what = "has a file open there";
	else if (has_mapping(proc, s))
		what = "has a file mapped there";
	else if (link_is_on(proc, "root", s->mount_id) || link_is_on(proc, "exe", s->mount_id))
		what = "runs from there";
	if (!what || read_small_file(proc, "comm", 4096, &comm, &len))
		return;
	comm[strcspn(comm, "\n")] = '\0';
	/* ourselves: everything we opened is closed by now, the rest is inherited from the
	 * caller */
	snprintf(who, sizeof(who), "%s (pid %.20s%s)", comm, pid,
		 atoi(pid) == getpid() ? ", this command, inherited from its caller" : "");
	tell(s, who, what);
}

static void look_at_mounts(struct search *s)
{
	struct io_mounts m;

	if (io_mounts_read(IO_MOUNTS_HERE, &m))
		return;
	for (size_t i = 0; i < m.n; i++) {
		if (m.v[i].parent == s->mount_id)
			tell(s, m.v[i].point, "is mounted on top of it");
		if (m.v[i].id == s->mount_id) {
			s->dev_major = m.v[i].dev_major;
			s->dev_minor = m.v[i].dev_minor;
		}
	}
	io_mounts_free(&m);
}

int print_users(FILE *f, int mount_id)
{
	struct search s = {.mount_id = mount_id, .f = f};
	CLEANUP_DIR DIR *d = opendir("/proc");
	struct dirent *e;

	look_at_mounts(&s);
	while ((e = entries_next(d)))
		if (*e->d_name >= '1' && *e->d_name <= '9' && !watch_is_helper(atoi(e->d_name)))
			look_at(&s, dirfd(d), e->d_name);
	if (s.more)
		fprintf(f, "  and %d more\n", s.more);
	return s.lines;
}

bool is_mount_of(const struct io_mount *m, unsigned dev_major, unsigned dev_minor,
		 const char *source)
{
	return m->dev_major == dev_major && m->dev_minor == dev_minor && mount_is_cairnfs(m) &&
	       !strcmp(m->source, source);
}

static bool has_mounted(const char *pid, unsigned dev_major, unsigned dev_minor, const char *source)
{
	char path[300];
	struct io_mounts m;
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%s/mountinfo", pid);
	if (io_mounts_read(path, &m))
		return false;
	for (size_t i = 0; i < m.n && !found; i++)
		found = is_mount_of(&m.v[i], dev_major, dev_minor, source);
	io_mounts_free(&m);
	return found;
}

int print_namespaces(FILE *f, unsigned dev_major, unsigned dev_minor, const char *source)
{
	struct search s = {.f = f};
	CLEANUP_DIR DIR *d = opendir("/proc");
	struct stat seen[MAX_LINES], st;
	struct dirent *e;
	size_t len;

	while (s.lines < MAX_LINES && (e = entries_next(d))) {
		CLEANUP_FREE char *comm = NULL;
		char path[300], who[4400];
		int i = 0;

		snprintf(path, sizeof(path), "%s/ns/mnt", e->d_name);
		if (*e->d_name < '1' || *e->d_name > '9' || fstatat(dirfd(d), path, &st, 0))
			continue;
		while (i < s.lines && (seen[i].st_ino != st.st_ino || seen[i].st_dev != st.st_dev))
			i++;
		snprintf(path, sizeof(path), "%s/comm", e->d_name);
		if (i < s.lines || read_small_file(dirfd(d), path, 4096, &comm, &len) ||
		    !strncmp(comm, "cairnfs", 7) ||
		    !has_mounted(e->d_name, dev_major, dev_minor, source))
			continue;
		comm[strcspn(comm, "\n")] = '\0';
		seen[s.lines] = st;
		snprintf(who, sizeof(who), "%s (pid %s)", comm, e->d_name);
		tell(&s, who, "has it mounted in its mount namespace");
	}
	return s.lines;
}
