/* SPDX-License-Identifier: MIT
 * A live tree without a mount, for the tests of fs/: how it is opened and killed, and a look inside. In C, because
 * fs.h is (its atomics are not C++). Nothing here is an operation: fs_client.hh sends requests for those. */
#ifndef CAIRN_TREE_SHIM_H
#define CAIRN_TREE_SHIM_H

#include "staging/staging.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fs;

/* A tree on the staging that o opens: replayed as the next worker does, or as the next mount
 * (`first`). 0 or -errno; *out is to be killed in either case, unless NULL. */
int shim_open(const struct staging_opts *o, bool first, bool start, struct fs **out);
int shim_start(struct fs *fs);
/* As a kill: everything stays where it is. fs is freed. */
void shim_kill(struct fs *fs);
struct staging *shim_staging(struct fs *fs);

/* ---- what threads of a worker do now and then ---- */
/* All that is durable leaves staging. */
void shim_evict(struct fs *fs);
/* What the kernel forgot is freed, as the upkeep does. */
void shim_tidy(struct fs *fs);
/* The log is written anew. */
int shim_rotate(struct fs *fs);
/* The mount is gone, and with it the second halves of closes. */
unsigned shim_close_all(struct fs *fs);

/* ---- a look inside ---- */
/* What is held in memory after shim_tidy(): nodes, names. */
void shim_held(struct fs *fs, size_t *nodes, size_t *names);
/* How many places of a node are remembered; it is known. */
unsigned shim_places(struct fs *fs, uint64_t id);
/* The staged file of a node, 0 = none. */
uint64_t shim_staged(struct fs *fs, uint64_t id);
/* The node of an open handle, 0 = no such. */
uint64_t shim_handle(struct fs *fs, uint64_t fh, bool *writer);
unsigned shim_handles(struct fs *fs);
bool shim_is_control(uint64_t id);	/* is it .cairn's, and no file's or directory's? */
/* Places in the order: of the last version of id, 0 = none; of the last change of a name. */
uint64_t shim_seal_seq(struct fs *fs, uint64_t id);
uint64_t shim_name_seq(struct fs *fs, uint64_t dir, const char *name);
/* Another host is, or was, in the store: this worker knows it. */
void shim_meet_others(struct fs *fs);
bool shim_knows_others(struct fs *fs);
/* saves.c: marks of files. n < 0: has none; own: this host wrote it; later: it comes after the .metadata. */
struct shim_mark {
	int64_t n;
	bool own, later;
};
/* The first of `count` that is of another save; count: none. *save: the one that all must be of. */
size_t shim_odd_one(const struct shim_mark *m, size_t count, uint64_t commit, uint64_t *save);

/* commit.c: is something of what the .metadata at `list` names missing in the store's directory at path, that of node
 * dir? enum staging_missing. The parser of the list is a process, between the other two calls. */
void shim_parsers_start(struct fs *fs);
int shim_commit_missing(struct fs *fs, uint64_t seq, uint64_t dir, const char *path, const char *list, char *what,
			size_t cap);
void shim_parsers_end(struct fs *fs);

/* expect.c: how large is this file expected to be; it was so large. The latter's name is in the tree. */
uint64_t shim_expect(struct fs *fs, uint64_t dir, const char *name);
void shim_expect_note(struct fs *fs, uint64_t dir, const char *name, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif
