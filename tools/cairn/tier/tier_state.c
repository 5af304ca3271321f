/* SPDX-License-Identifier: MIT
 *
 * What the follower of a tier keeps in STORE/.cairn/<host>/tier/, and tells the mount:
 *
 *	status.json	what it does, and where each checkpoint is
 *	tier		the tier's name and id: what was there is still there
 *	sent.json	what was sent to it
 */
#include "tier_follow.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#define ID_LEN 32u
#define ID_PATH ".cairn/tier-id" /* in a tier that is a directory */
#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct tier_shared *follow_shared(void)
{
	struct tier_shared *s;
	struct stat st;

	if (fstat(TIER_SHARED_FD, &st) || st.st_size < (off_t)sizeof(*s))
		return NULL;
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED, TIER_SHARED_FD, 0);
	close(TIER_SHARED_FD);
	return s == MAP_FAILED ? NULL : s;
}

/* ---- the directory ------------------------------------------------------------------ */

int follow_open_own(struct follow *f, int store)
{
	CLEANUP_CLOSE int cairn = -1;
	int err = 0;

	if (!f->for_mount)
		return 0;
	cairn = openat(store, ".cairn", OPEN_DIR);
	f->own_host = cairn < 0 ? -1 : openat(cairn, f->for_mount, OPEN_DIR);
	if (f->own_host < 0 || (mkdirat(f->own_host, TIER_DIR, 0700) && errno != EEXIST))
		err = -errno;
	if (!err)
		f->own = openat(f->own_host, TIER_DIR, OPEN_DIR);
	if (!err && f->own < 0)
		err = -errno;
	return err;
}

void follow_close_own(struct follow *f)
{
	if (f->own >= 0)
		close(f->own);
	if (f->own_host >= 0)
		close(f->own_host);
	f->own = f->own_host = -1;
}

int follow_write_own(const struct follow *f, const char *name, const char *text, size_t len,
		     bool durably)
{
	const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
	char new[64];
	int err = 0;

	snprintf(new, sizeof(new), "%s.new", name);
	CLEANUP_CLOSE int fd = openat(f->own, new, flags, 0600);
	if (fd < 0)
		return -errno;
	errno = 0;
	if (write(fd, text, len) != (ssize_t)len)
		err = errno ? -errno : -ENOSPC;
	if (!err && ((durably && fsync(fd)) || renameat(f->own, new, f->own, name)))
		err = -errno;
	if (err)
		unlinkat(f->own, new, 0); /* a full store needs its blocks */
	else if (durably && fsync(f->own))
		err = -errno;
	return err;
}

/* ---- status.json --------------------------------------------------------------------- */

static void put_report(struct json_out *j, const struct follow *f)
{
	const struct tier_report *r = &f->report;

	json_put_path(j, "tier", f->tier);
	json_put_bool(j, "running", !f->ended);
	json_put_i64(j, "pid", f->ended ? 0 : getpid());
	json_put_u64(j, "pending", r->pending);
	json_put_u64(j, "pending_bytes", r->pending_bytes);
	json_put_u64(j, "looked_ms", r->looked_ms);
	json_put_u64(j, "listed_ms", r->listed_ms);
	json_put_u64(j, "oldest_s", r->oldest_s);
	json_put_path(j, "sending", *r->sending ? r->sending : NULL);
	json_put_path(j, "last", *r->last ? r->last : NULL);
	json_put_u64(j, "last_s", r->last_s);
	json_put_u64(j, "sent", r->sent);
	json_put_u64(j, "sent_bytes", r->sent_bytes);
	json_put_u64(j, "removed", r->removed);
	json_put_path(j, "error", *r->error ? r->error : NULL);
	json_put_u64(j, "error_s", r->error_s);
	json_put_u64(j, "retry_s", r->retry_s);
}

static void put_checkpoints(struct json_out *j, const struct follow *f)
{
	static const char *const names[] = {
		[KNOWN_NEW] = "incomplete", [KNOWN_WAITING] = "waiting", [KNOWN_SENT] = "sent"};

	json_open(j, "checkpoints", '[');
	for (size_t i = 0; i < f->n; i++) {
		json_open(j, NULL, '{');
		json_put_path(j, "path", f->v[i].path);
		json_put_string(j, "state", names[f->v[i].state]);
		json_put_u64(j, "bytes", f->v[i].print.bytes);
		if (f->v[i].state == KNOWN_WAITING && f->v[i].fails && *f->v[i].failed)
			json_put_path(j, "why", f->v[i].failed);
		if (f->v[i].state == KNOWN_NEW && *f->v[i].why) {
			json_put_path(j, "why", f->v[i].why);
			json_put_u64(j, "since_s", f->v[i].since_s);
		}
		json_close(j, '}');
	}
	json_close(j, ']');
}

void follow_write(struct follow *f)
{
	CLEANUP_FREE char *text = NULL;
	struct json_out j;
	size_t len;
	FILE *out = f->own < 0 ? NULL : open_memstream(&text, &len);

	if (!out)
		return;
	json_begin(&j, out);
	json_open(&j, NULL, '{');
	put_report(&j, f);
	put_checkpoints(&j, f);
	json_close(&j, '}');
	fputc('\n', out);
	if (!fclose(out) && !follow_write_own(f, "status.json", text, len, false))
		f->changed = false;
}

/* ---- is it the same tier? ------------------------------------------------------------- */

static void read_id(int dir, const char *path, char out[ID_LEN + 1])
{
	CLEANUP_FREE char *text = NULL;
	size_t len = 0;

	*out = '\0';
	if (!read_small_file(dir, path, 4096, &text, &len) && len >= ID_LEN)
		snprintf(out, ID_LEN + 1, "%s", text);
}

/* What was written by remember_id(); "" = nothing, or of another tier. */
static void recall_id(struct follow *f)
{
	CLEANUP_FREE char *text = NULL;
	size_t len = 0;

	if (*f->id || f->own < 0 || read_small_file(f->own, "tier", 8192, &text, &len) ||
	    len < ID_LEN + 1 || strcmp(text + ID_LEN + 1, f->tier))
		return;
	snprintf(f->id, sizeof(f->id), "%.*s", (int)ID_LEN, text);
}

static int remember_id(struct follow *f)
{
	CLEANUP_FREE char *text = NULL;
	int n = asprintf(&text, "%s\n%s", f->id, f->tier);

	return n < 0	    ? -ENOMEM
	       : f->own < 0 ? 0
			    : follow_write_own(f, "tier", text, (size_t)n, true);
}

static void make_id(char out[ID_LEN + 1])
{
	unsigned char b[ID_LEN / 2] = {0};

	if (getrandom(b, sizeof(b), 0) < 0)
		memcpy(b, &(struct timespec){.tv_sec = time(NULL)}, sizeof(b));
	for (size_t i = 0; i < sizeof(b); i++)
		snprintf(out + 2 * i, 3, "%02x", b[i]);
}

int follow_check_tier(struct follow *f, struct tier_why *w)
{
	CLEANUP_CLOSE int dir = -1;
	char there[ID_LEN + 1];

	if (!strncmp(f->tier, "s3://", 5))
		return 0;
	recall_id(f);
	dir = open(f->tier, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return tier_told(w, -errno, "%s: %m", f->tier);
	if (!*f->id)
		return 0;
	read_id(dir, ID_PATH, there);
	if (!strcmp(there, f->id))
		return 0;
	return tier_told(w, -ENODEV,
			 "%s: not the directory that was pushed to before: is its filesystem "
			 "mounted? To begin anew, remove STORE/.cairn/%s/" TIER_DIR "/tier",
			 f->tier, f->for_mount ? f->for_mount : "HOST");
}

int follow_mark_tier(struct follow *f, struct tier *t, struct tier_why *w)
{
	int err = 0;

	if (t->s3 || *f->id)
		return 0;
	read_id(t->root, ID_PATH, f->id);
	if (!*f->id) {
		make_id(f->id);
		err = tier_put_new(t, ID_PATH, f->id, ID_LEN);
		read_id(t->root, ID_PATH, f->id); /* another host's, if that was first */
	}
	if (!err && !*f->id)
		err = -EIO;
	if (!err)
		err = remember_id(f);
	if (err)
		*f->id = '\0';
	return err ? tier_told(w, err, "%s/" ID_PATH ": %s", f->tier, strerror(-err)) : 0;
}

/* ---- what was sent --------------------------------------------------------------------- */

/* Nothing counts as sent because of this file: it may be old, or damaged, and the tier may have
 * lost anything. It tells which checkpoints a push will probably find there. */
#define SENT "sent.json"
#define SENT_PAUSE_S 1.0 /* between two writes, if only what was there already was found */

static int recall_one(struct follow *f, const struct json_doc *d, int v)
{
	struct known k = {.path = json_get_path(d, v), .sent_before = true};
	struct known *more;

	if (!k.path || !json_is_u64(d, json_at(d, v, "print"), &k.print.hash) ||
	    !json_is_u64(d, json_at(d, v, "bytes"), &k.print.bytes) ||
	    !json_is_u64(d, json_at(d, v, "files"), &k.print.files)) {
		free(k.path);
		return -EBADMSG;
	}
	json_is_u64(d, json_at(d, v, "inodes"), &k.print.inodes);
	more = reallocarray(f->v, f->n + 1, sizeof(*f->v));
	if (!more) {
		free(k.path);
		return -ENOMEM;
	}
	f->v = more;
	f->v[f->n++] = k;
	return 0;
}

static bool is_of_tier(const struct follow *f, const struct json_doc *d)
{
	CLEANUP_FREE char *tier = json_bytes(d, json_at(d, 0, "tier"));
	CLEANUP_FREE char *id = json_bytes(d, json_at(d, 0, "id"));

	return tier && id && !strcmp(tier, f->tier) && !strcmp(id, f->id);
}

void follow_recall(struct follow *f)
{
	CLEANUP_FREE char *text = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	size_t len, n = f->n;
	int list, err = 0;

	if (f->own < 0 || f->sent.read)
		return;
	f->sent.read = true;
	recall_id(f);
	if (read_small_file(f->own, SENT, STATUS_MAX, &text, &len) || json_parse(text, len, &d) ||
	    !is_of_tier(f, d))
		return;
	list = json_at(d, 0, "checkpoints");
	for (int v = json_first(d, list); !err && v >= 0; v = json_next(d, list, v))
		err = recall_one(f, d, v);
	while (err && f->n > n)
		free(f->v[--f->n].path);
	follow_sort(f);
}

static void put_sent(struct json_out *j, const struct follow *f)
{
	json_put_path(j, "tier", f->tier);
	json_put_string(j, "id", f->id);
	json_open(j, "checkpoints", '[');
	for (size_t i = 0; i < f->n; i++) {
		const struct known *k = &f->v[i];

		if (!k->sent_before)
			continue;
		json_open(j, NULL, '{');
		json_put_path(j, "path", k->path);
		json_put_u64(j, "print", k->print.hash);
		json_put_u64(j, "inodes", k->print.inodes);
		json_put_u64(j, "files", k->print.files);
		json_put_u64(j, "bytes", k->print.bytes);
		json_close(j, '}');
	}
	json_close(j, ']');
}

void follow_remember(struct follow *f, bool now)
{
	CLEANUP_FREE char *text = NULL;
	struct json_out j;
	size_t len;
	FILE *out;

	if (f->own < 0 || !f->sent.changed || (!now && now_s() < f->sent.write_at))
		return;
	out = open_memstream(&text, &len);
	if (!out)
		return;
	json_begin(&j, out);
	json_open(&j, NULL, '{');
	put_sent(&j, f);
	json_close(&j, '}');
	fputc('\n', out);
	f->sent.changed = fclose(out) || follow_write_own(f, SENT, text, len, true);
	f->sent.write_at = now_s() + SENT_PAUSE_S;
}
