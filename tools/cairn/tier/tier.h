/* SPDX-License-Identifier: MIT
 *
 * Tiers: copies of checkpoints in another directory, at the same relative paths, and below its
 * .cairn a manifest for each (docs/SCALE.md). Paths are relative to the tier. Functions return 0 or
 * -errno; those with `why` fill it on failure.
 */
#ifndef CAIRN_TIER_H
#define CAIRN_TIER_H

#include "tools/cairn/ckpt/ckpt.h"

#include "io/sum/sum.h"
#include "tools/tier/pace.h"

#include <signal.h>

struct tier_why {
	char text[1024];
};
/* Writes the reason, one line, and returns err. */
__attribute__((format(printf, 3, 4))) int tier_told(struct tier_why *w, int err, const char *fmt,
						    ...);

/* ---- the directory (tier_dir.c) ------------------------------------------------- */

struct tier_s3; /* an object store (tier_s3.c) */

struct tier {
	const char *name; /* as given by the user; borrowed */
	struct tier_s3 *s3; /* NULL: it is a directory */
	int root; /* O_RDONLY */
	int tmp; /* .cairn/tmp/<host>.<pid>, this process's; -1: opened to read */
	char tmp_name[128];
	/* new directories get mode and owner of the one of the same path here; -1: none */
	int like;
	unsigned temps;
	mode_t mask; /* umask(2) as it was opened: threads cannot ask for it without setting it */
	struct pace *pace; /* of copies to it; NULL: no limit */
	const volatile sig_atomic_t *stop; /* ends a copy with -ECANCELED; NULL: nothing does */
};

#define TIER_NONE ((struct tier){.root = -1, .tmp = -1, .like = -1})
#define CLEANUP_TIER __attribute__((cleanup(tier_close)))

/* To write: others may, too. Removes what killed processes of this host left unfinished. host: its
 * name, NULL: the machine's. */
int tier_open_to_write(struct tier *t, const char *name, const char *host, int store,
		       struct tier_why *w);
int tier_open_to_read(struct tier *t, const char *name, struct tier_why *w);
/* The same, of one that was just listed: an object store is not asked whether it is there. */
int tier_open_listed(struct tier *t, const char *name, struct tier_why *w);
void tier_close(struct tier *t);
/* For copies to it from now on; both are borrowed. */
void tier_limit(struct tier *t, struct pace *pace, const volatile sig_atomic_t *stop);

/* Opens a file or directory without following symlinks. */
int tier_open_at(const struct tier *t, const char *path, int flags);
int tier_stat(const struct tier *t, const char *path, struct stat *out); /* lstat */
/* Mode and owner alone, for which no server is asked. */
int tier_mode(const struct tier *t, const char *path, struct stat *out);

/* All directories on the way to dir, and itself; dir is as before when it returns. */
int tier_make_dirs(const struct tier *t, char *dir);
/* Gives the directory fd mode and owner of the one at path in t->like; what cannot be given away is
 * closed to others. */
int tier_make_like(const struct tier *t, int fd, const char *path);

struct tier_temp {
	char name[16]; /* "" = none */
	int fd; /* an object's bytes, in memory */
	uint64_t size;
};

/* As strerror(-err), or what the object store said. */
const char *tier_strerror(const struct tier *t, int err);
/* The checksum of a file there, and its size. */
int tier_sum(const struct tier *t, const char *path, uint64_t *size, char sum[IO_CHECKSUM_LEN]);
/* A small file of it: malloc()ed. */
int tier_read_small(const struct tier *t, const char *path, size_t max, char **text, size_t *len);

/* Told of each part that was copied. */
typedef void (*tier_seen_fn)(void *ctx, uint64_t bytes);

/* Checksums of the ranges of what is copied: `done` is told of each while the next ones are on
 * their way. */
struct tier_ranges {
	uint64_t off; /* where the copy begins: tier_get() */
	uint64_t bytes; /* of a range */
	bool apart; /* tier_get(): in any order; then there may be no sum of all */
	io_range_fn done;
	void *ctx;
};

struct tier_file;
/* Copies the open file into an unpublished one on stable storage, with mode, owner and mtime of st;
 * f gets the checksums. -ESTALE: it had not the size of st. An object store has nothing
 * unpublished: `now`: it gets its name at once, and without it the bytes are kept in memory.
 * f->upload is gone on with, NULL: none; -ENOENT: there is no such upload. */
int tier_copy(struct tier *t, int in, struct tier_file *f, bool now, const struct stat *st,
	      struct tier_temp *out, tier_seen_fn seen, void *ctx);
/* Is a file of that size sent in parts, in an upload that a later push can go on with? */
bool tier_in_parts(const struct tier *t, uint64_t size);
/* *id: malloc()ed; NULL: the server's cannot be kept, and the file is sent without. */
int tier_begin_upload(const struct tier *t, const char *path, char **id);
/* Ends it; 0 also when it has ended. */
int tier_abort_upload(const struct tier *t, const char *path, const char *id);
/* `len` bytes of a file from r->off on into the same place of a file of the caller; r->done is told
 * of each range that was copied; sum is that of all. len 0: the file is empty. -ESTALE: it ends
 * before. */
int tier_get(const struct tier *t, const char *path, int out, uint64_t len,
	     const struct tier_ranges *r, char sum[IO_CHECKSUM_LEN]);
/* The bytes are there: gives the file mode, owner and mtime of st, and its checksum (NULL: none);
 * then all is on stable storage. */
int tier_finish(int fd, const struct stat *st, const char *sum);
void tier_drop(struct tier *t, struct tier_temp *temp);
/* Gives it its name, replacing what has that; the name is durable after tier_sync_dir(). */
int tier_publish(struct tier *t, struct tier_temp *temp, const char *path);
/* The directory that path is in. */
int tier_sync_dir(const struct tier *t, const char *path);
/* A small file, whole and durable. */
int tier_put(struct tier *t, const char *path, const char *text, size_t len);
/* The same in a directory, if no other process has made one first; 0 then, too. */
int tier_put_new(struct tier *t, const char *path, const char *text, size_t len);
/* Durable; 0 also when there is none. */
int tier_remove(struct tier *t, const char *path);
/* A directory, if it is empty: -ENOTEMPTY. 0 also when there is none, and always of objects. */
int tier_remove_dir(struct tier *t, const char *path);

/* ---- an object store, by cairn-tier (tier_s3.c) ------------------------------------ */

/* name: s3://BUCKET/PREFIX. */
int tier_s3_open(struct tier_s3 **out, const char *name, struct tier_why *w);
void tier_s3_close(struct tier_s3 *s);
const char *tier_s3_why(const struct tier_s3 *s); /* the last failure; "": none */
/* op: enum s3_op; sum and size may be NULL. */
int tier_s3_do(struct tier_s3 *s, unsigned op, const char *path, int fd, uint64_t *size, char *sum);
/* The same with an upload, or NULL; S3_BEGIN writes it, S3_UPLOAD_MAX + 1 bytes. ranges: of S3_PUT
 * and S3_GET; NULL: none. */
int tier_s3_upload(struct tier_s3 *s, unsigned op, const char *path, int fd, uint64_t *size,
		   char *sum, char *upload, const struct tier_ranges *ranges);
/* As tier_limit(). */
void tier_s3_limit(struct tier_s3 *s, uint64_t rate, const volatile sig_atomic_t *stop);

/* `each` gets what is behind top in each key that begins with it. Its first error ends that, and is
 * returned. 0 or -errno. */
typedef int (*tier_key_fn)(void *ctx, const char *below);
int tier_s3_keys(struct tier_s3 *s, const char *top, tier_key_fn each, void *ctx);

/* ---- manifests (manifest.c) ----------------------------------------------------- */

#define TIER_MANIFESTS ".cairn/manifests"
#define TIER_MANIFEST "manifest.json"
/* The same, of files that may be there while there is no manifest: they are ours to replace. */
#define TIER_BEGUN "begun.json"
/* What a host that does not commit it has sent, and is sending. */
#define TIER_PART "begun.%s.json"

struct tier_file {
	char *path;
	uint64_t size;
	struct timespec mtime; /* of the store's file */
	char sum[IO_CHECKSUM_LEN];
	/* The checksums of its ranges, 32 hexadecimal digits each; NULL: not known, or the file is
	 * one range */
	char *ranges;
	uint64_t range_bytes; /* of each but the last, which may be shorter */
	/* In TIER_BEGUN, of a file that is sent in parts: the id of the upload, and its ctime
	 * then; NULL: none */
	char *upload;
	struct timespec ctime;
};

struct manifest {
	char *path; /* of the checkpoint */
	char *format;
	bool has_step;
	uint64_t step;
	uint64_t generation; /* how often a copy at this path was completed, from 1 */
	uint64_t time_s; /* when, since 1970 */
	bool commits; /* TIER_BEGUN: its process is about to commit */
	bool ended; /* TIER_BEGUN: its push has ended; what the manifest lacks may be there */
	/* TIER_BEGUN: these files are being removed (tier_rm.c); who does renews time_s */
	bool removes;
	struct tier_file *v; /* sorted by path */
	size_t n;
};

#define CLEANUP_MANIFEST __attribute__((cleanup(manifest_free)))

/* Its path in the tier; malloc()ed. */
char *manifest_path(const char *checkpoint, const char *name);
/* -ENOENT: none; -EBADMSG: not one. */
int manifest_load(const struct tier *t, const char *checkpoint, const char *name,
		  struct manifest *out);
int manifest_save(struct tier *t, const struct manifest *m, const char *name);
#define TIER_REMOVAL_S 300 /* one whose time_s is older was killed */
/* Is somebody removing what it lists? */
bool manifest_is_removal(const struct manifest *m);
void manifest_free(struct manifest *m);
/* A path and all else that belongs to it is copied. */
int manifest_add(struct manifest *m, const struct tier_file *f);
void manifest_sort(struct manifest *m);
/* The checksums of the same bytes. */
void manifest_take_sums(struct tier_file *to, const struct tier_file *from);
/* For the bytes of f, whose path and size are known. NULL: no memory. After all bytes,
 * manifest_end_sums(). */
struct io_sum *manifest_begin_sums(struct tier_file *f);
/* m NULL: f->sum is known. */
void manifest_end_sums(struct tier_file *f, struct io_sum *m);
/* What manifest_begin_sums() has io_sum_ranges() call; ctx is f. */
void manifest_add_range(void *ctx, uint64_t number, const char sum[IO_CHECKSUM_LEN]);
/* Of the ranges of a file of that size: 8 MiB, more from 128 GiB on, so that a file has at most
 * 16,384. */
uint64_t manifest_range_bytes(uint64_t size);
const struct tier_file *manifest_find(const struct manifest *m, const char *path);
uint64_t manifest_bytes(const struct manifest *m);
/* FNV-1a of more bytes, h: of those before: nobody gains by a collision. */
#define TIER_HASH_BEGIN 0xcbf29ce484222325u
uint64_t tier_hash(uint64_t h, const void *bytes, size_t n);
/* Of another manifest of the checkpoint it is another number, also if that is of the same files and
 * was written again. */
uint64_t manifest_version(const struct manifest *m);
/* The newest of its files'. */
struct timespec manifest_time(const struct manifest *m);
enum ckpt_format manifest_format(const struct manifest *m); /* CKPT_NONE: not known */
/* For ckpt_newest_safe(). 0 or -ENOMEM. */
int manifest_found(const struct manifest *m, struct ckpt_found *out);
void manifest_forget_uploads(struct manifest *m);
/* Can it be kept, and be put into a URL as it is? */
bool manifest_is_upload(const char *id);
/* The checkpoints that have a file `name`, sorted. */
int manifest_list(const struct tier *t, const char *name, struct names *out);
bool manifest_is_listed(const struct names *n, const char *path); /* of such a list */

/* ---- subcommands ------------------------------------------------------------------ */

struct tier_opts {
	bool json, quiet, latest, follow, force;
	uint64_t rate; /* bytes a second; 0: no limit */
	uint64_t keep; /* of follow: how many checkpoints of a directory stay; 0: all */
	const char *mount; /* of follow and serve: by which names are removed, or given */
	const char *for_mount; /* of follow: the host's name in the store; NULL: a person's */
	char **dirs; /* only these checkpoints and those below them; none: all */
	size_t n_dirs;
};

/* Is the checkpoint at path asked for? hit[i] is set for the dir that names it; NULL is allowed. */
bool tier_wants(const struct tier_opts *o, const char *path, bool *hit);

int tier_push(const char *store, const char *tier, const struct tier_opts *o);
/* Until SIGTERM or SIGINT (tier_follow.c). */
int tier_follow(const char *store, const char *tier, const struct tier_opts *o);
int tier_fetch(const char *tier, const char *store, const struct tier_opts *o);
struct tier_asked { /* who waits for a checkpoint */
	const char *first; /* of its files, the one that comes first */
	/* By which the store gets the names; NULL: as from another host (a server that a keeper
	 * of an earlier version started) */
	const char *mount;
	int sock; /* by which TIER_ASK_RANGE come */
	volatile uint64_t *bytes; /* that have come, to be told */
	/* of bytes that came of a file, and, with descriptors, how it is read: TIER_ASK_FILE */
	void (*seen)(const struct tier_file *t, int fd, int told, uint64_t range_bytes);
	/* The tier has not what this manifest of it lists; why: one line. Before readers know. */
	void (*damaged)(const struct manifest *m, const char *why);
};
struct fetch;
/* Opens the tier for one fetch, now or later; it is tier_fetch_one()'s, which also reports what
 * failed. NULL: no memory. tier is kept. */
struct fetch *tier_fetch_prepare(const char *tier);
/* One checkpoint, into a store that a mount serves. f: as above, or NULL. -EBADMSG: the tier has
 * not what its manifest lists; -EBUSY: a job writes there; -EEXIST: it did meanwhile. The process
 * is to end afterwards. */
int tier_fetch_one(struct fetch *f, const char *store, const char *path,
		   const struct tier_asked *asked, struct tier_why *w);
/* Answers the workers of a mount (io/tier_ask.h) until it is ended (tier_serve.c). */
int tier_serve(const char *store, const char *tier, const struct tier_opts *o);
int tier_ls(const char *tier, const struct tier_opts *o);
int tier_verify(const char *tier, const struct tier_opts *o);
/* Each of o->dirs is one checkpoint. */
int tier_rm(const char *tier, const struct tier_opts *o);

/* ---- the subcommand (tier.c) ----------------------------------------------------- */

int cmd_tier(int argc, char **argv);

#endif
