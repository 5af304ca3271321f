/* SPDX-License-Identifier: MIT
 *
 * Shared by the files of libcairn. Depends on libc alone.
 *
 *	stage.c	 a stage's life, options, forks, counts
 *	buffer.c the pool of memory; gets it from the mount
 *	gpu.c	 contexts, registration, copies
 *	shard.c	 the calls on a shard
 *	file.c	 names: hidden, linked, renamed; bytes written
 *	load.c	 reading into a device
 *	wait.c	 durable
 *	error.c	 the text
 *
 * Locks (io/locks.h has their order): stage->lock guards the pool and the counts, gpu.lock the
 * contexts, load.lock the chunks, shard->lock the copies to one shard. No system call that can
 * block and no call of the driver is made under stage->lock. stage.c:opening_lock is held around
 * the open of a buffer and by forks.
 */
#ifndef LIBCAIRN_PRIV_H
#define LIBCAIRN_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "cairn.h"
#include "cuda_dl.h"
#include "io/clock.h"
#include "io/keys.h"
#include "io/locks.h"

static inline void cairn_free_ptr(void *p)
{
	free(*(void **)p);
}

static inline void cairn_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#define CLEANUP_FREE __attribute__((cleanup(cairn_free_ptr)))
#define CLEANUP_CLOSE __attribute__((cleanup(cairn_close_fd)))

#define HUGE_PAGE (2ull << 20)
#define SMALL_MAX (1ull << 20) /* smaller shards are not worth a huge page of the mount's */
#define LOAD_CHUNK (32ull << 20)
#define LOAD_CHUNKS 4

/* ---- error.c ---- */

/* Sets cairn_error() of this thread and returns err. */
int fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, followed by strerror(-err) and advice. */
int fail_on(int err, const char *what, const char *path);

/* ---- buffers ---- */

/*
 * A buffer is memory, mapped and registered once and used for many shards.
 *
 *	new ──▶ USED ──commit──▶ LENT (CAIRN_STAGED) ──the mount says free──▶ USED again
 *	          │ └──commit, abort──▶ IDLE ──▶ USED again
 *	          └── kept by a reader, refused, a lost context, too old ──▶ gone
 *
 *	state	in the pool's list	written by	copies under way
 *	USED	yes			its shard	perhaps
 *	LENT	yes			nobody		no
 *	IDLE	yes			nobody		no
 */
enum buffer_state { BUFFER_USED, BUFFER_LENT, BUFFER_IDLE };

struct stage_buffer {
	struct stage_buffer *next;
	enum buffer_state state;
	enum cairn_kind kind;
	char *base;
	uint64_t bytes; /* of the mapping and, CAIRN_STAGED, of the file at first */
	int fd; /* CAIRN_STAGED, else -1 */
	char *path; /* CAIRN_STAGED: the name by which it is linked */
	uint64_t file_bytes; /* CAIRN_STAGED: what the file's size is set to */
	uint64_t clock; /* stage->clock when it was last used */
	uint64_t put; /* stage->puts when it was last given back */
	uint64_t epoch, name; /* CAIRN_STAGED: of its last shard */
	bool pin_tried;
	struct cuda_dl_pin pin;
	struct cuda_dl_marks marks;
};

struct gpu {
	bool on; /* the driver is open */
	int device; /* -1: any */
	struct cuda_dl cu;
	pthread_mutex_t lock;
	struct cuda_dl_primaries primaries; /* gpu.lock */
};

struct chunk {
	struct stage_buffer *buffer; /* created at the first use */
	bool busy;
};

enum notice { NOTICE_PIN, NOTICE_NO_MEMORY, NOTICE_STAND_IN, NOTICE_COUNT };
#define NOTICE_MAX 512 /* bytes of a text */

struct cairn_stage {
	struct cairn_stage *next; /* stage.c:stages_lock */
	atomic_bool forked; /* this is the child's copy */
	unsigned flags;
	uint64_t idle_bytes;
	void (*notice)(void *arg, const char *text);
	void *notice_arg;
	dev_t dev; /* of the filesystem; shards elsewhere are CAIRN_OWN */
	bool cairnfs;
	/* a benchmark's: buffers are nameless files of `mount`, a tmpfs, and commits give no
	 * name (stage_stand_in) */
	bool stand_in;
	char *mount; /* its root if it gives memory, or NULL */
	struct gpu gpu;

	pthread_mutex_t lock;
	bool refused; /* the mount gives no memory, ever */
	bool noticed[NOTICE_COUNT];
	struct stage_buffer *buffers;
	uint64_t clock; /* buffers asked for */
	uint64_t puts; /* buffers given back */
	/* Checkpoints, as far as they can be distinguished: another directory, a repeated name, or
	 * a while without an open shard. */
	uint64_t epoch, epoch_dir;
	int64_t epoch_ms; /* when a buffer was last asked for or given back */
	uint64_t full_until; /* clock; the mount recently had no space */
	unsigned shards_open;
	unsigned calls; /* cairn_load in progress */
	struct cairn_stats stats;

	pthread_mutex_t load_lock;
	pthread_cond_t load_cond;
	struct chunk chunk[LOAD_CHUNKS];
};

struct cairn_shard {
	cairn_stage *stage;
	struct stage_buffer *buffer;
	uint64_t size;
	unsigned flags;
	int dir; /* O_PATH, -1: no path yet */
	bool same_fs; /* dir is on the stage's filesystem */
	char *name; /* in dir */
	uint64_t dir_ino;
	pthread_mutex_t lock; /* marks, devices, failed */
	int failed; /* -errno of a copy */
	char failure[256];
	uint64_t devices; /* bit n: copied from cuda:n */
	bool copied; /* cairn_shard_copy was called */
	bool device_set; /* by cairn_shard_device */
	char device[256];
};

/* ---- stage.c ---- */

/* -ECHILD after a fork, -EINVAL for NULL; 0. */
int stage_usable(const cairn_stage *stage);
/* Blocks forks in between: the child must know of a new descriptor. No lock held. */
void stage_block_forks(void);
void stage_allow_forks(void);
/* Calls the notice once per reason. No lock held. */
void stage_notice(cairn_stage *stage, enum notice why, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* For cairn-bench-gpu on machines without FUSE: buffers like those of a mount with huge pages,
 * created in `tmpfs`. Commits end at the copies: no name appears. */
int stage_stand_in(const char *tmpfs, const struct cairn_options *options, cairn_stage **stage);

/* ---- buffer.c ---- */

/* A buffer of at least `size` bytes, USED: an old one that fits, else a new one. staged: from the
 * mount if possible; it may be our own even so. dir, name: numbers that identify the shard's
 * directory and name; 0: unknown. NULL: *err. No lock held. */
struct stage_buffer *buffer_get(cairn_stage *stage, uint64_t size, bool staged, uint64_t dir,
				uint64_t name, int *err);
/* A new one of our own memory, not in the pool. */
struct stage_buffer *buffer_own(cairn_stage *stage, uint64_t bytes, int *err);
/* Ends a shard's use. broken: copies may still be in progress, it must not be reused. */
void buffer_put(cairn_stage *stage, struct stage_buffer *b, enum buffer_state state, bool broken);
/* Unregisters, unmaps, frees; not in the pool any more. */
void buffer_free(cairn_stage *stage, struct stage_buffer *b);
/* Frees all that no shard uses. */
void buffers_trim(cairn_stage *stage);

/* ---- gpu.c ---- */

void gpu_open(cairn_stage *stage, int device);
void gpu_close(cairn_stage *stage);
/* Registers it unless that was tried; device -1: with any context of the process, later if
 * it has none. A failure is reported by a notice. */
void gpu_pin(cairn_stage *stage, struct stage_buffer *b, int device);
/* The same, for a caller that holds a lock: text is for its stage_notice(), "" if it needs none. */
void gpu_pin_quietly(cairn_stage *stage, struct stage_buffer *b, int device, char text[NOTICE_MAX]);
void gpu_unpin(cairn_stage *stage, struct stage_buffer *b);
/* The kind of memory at p; without a driver plain memory. */
int gpu_where(cairn_stage *stage, const void *p, enum cuda_dl_memory *what, int *device);
/* Queued, and recorded in b's marks. Caller: a lock over those. In order: src is pinned host
 * memory. */
int gpu_copy_from(cairn_stage *stage, struct stage_buffer *b, void *host, const void *src, size_t n,
		  void *stream, int device, bool in_order);
int gpu_copy_to(cairn_stage *stage, struct stage_buffer *b, void *dst, size_t n, void *stream,
		int device);
/* Waits for b's marks. */
int gpu_wait(cairn_stage *stage, struct stage_buffer *b);
/* The calling thread's context, for a helper thread; NULL: none. */
cudl_context gpu_current(cairn_stage *stage);
void gpu_push(cairn_stage *stage, cudl_context ctx);
void gpu_pop(cairn_stage *stage, cudl_context ctx);

/* ---- file.c ---- */

/* Splits path into an O_PATH descriptor of its directory and a name. */
int file_split(const char *path, int *dir, char **name);
/* Links the buffer's file to the name; -EXDEV and similar: not possible, write it. */
int file_link(const cairn_shard *shard, uint64_t size);
/* Writes the buffer's bytes to a new file and gives it the name. */
int file_write(const cairn_shard *shard, uint64_t size);
/* The text for the shard's user.cairn.device. */
void shard_device_text(const cairn_shard *shard, char *buf, size_t size);
/* Sets user.cairn.device: none if text is empty. Best effort. */
void file_device(int fd, const char *text);
/* Is path on a cairnfs? If so its state goes to buf. -errno of a dead mount. */
int mount_state(const char *path, char *buf, size_t size);

/* ---- wait.c ---- */

int64_t now_ms(void); /* monotonic */

#endif
