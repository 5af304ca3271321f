/* SPDX-License-Identifier: MIT
 *
 * libcairn: for trainers. A checkpoint's bytes are copied from the GPU into memory that is
 * written to the store directly, without a CPU copy in between.
 *
 *	cairn_stage *stage;
 *	cairn_shard *shard;
 *
 *	cairn_stage_open("/mnt/ckpt", NULL, &stage);              once, after any fork
 *	cairn_shard_create(stage, path, bytes, 0, &shard);        each shard of each step
 *	cairn_shard_copy(shard, offset, tensor, n, stream);       each tensor
 *	cairn_shard_commit(shard, bytes);                         the name appears, whole
 *	cairn_wait(path, -1);                                     when it must be durable
 *
 * The same calls work everywhere; only the speed differs:
 *
 *	on a cairnfs mount with passthrough	the memory is a staged file's (CAIRN_STAGED):
 *						a commit gives it a name and copies nothing
 *	on one without, or with no space left	the memory is this process's own (CAIRN_OWN):
 *						a commit writes it, to a new file that is renamed
 *	on any other filesystem			the same
 *	with no GPU, driver or registration	the same memory, not registered
 *
 * Memory is mapped and registered with CUDA once and used again for later shards of about
 * the same size, so from the third checkpoint on a steady trainer registers nothing.
 *
 * Errors. Calls return 0 or a negative errno, unless stated otherwise, and leave a text that
 * says what to do in cairn_error(). Besides those named, each call can return -ENOMEM, and
 * errors of the filesystem (-ENOENT, -EACCES, -ENOSPC, -EIO, ...). -EINVAL means that
 * arguments violate a contract below; nothing has changed.
 *
 * Threads. A stage may be used by any number of threads at once. So may one shard, but only
 * for cairn_shard_data, _copy, _sync and _kind; cairn_shard_set_path, _device, _commit and
 * _abort must be called by one thread while no other has a call on that shard in progress. A
 * shard belongs to no thread: one may create it and another commit it.
 *
 * Fork. CUDA does not survive a fork, nor does a stage: the child has neither its memory nor
 * its files, and each call on it or its shards there returns -ECHILD (cairn_shard_data:
 * NULL), also cairn_stage_close. The parent's stage is not affected.
 * The child can open a stage of its own.
 *
 * Streams. `stream` is a CUstream (or cudaStream_t, the same type); NULL is CUDA's legacy
 * default stream, which is PyTorch's default one; cudaStreamPerThread is the calling thread's.
 * Without CUDA it is ignored.
 */
#ifndef CAIRN_H
#define CAIRN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1

typedef struct cairn_stage cairn_stage;
typedef struct cairn_shard cairn_shard;

/* "0.1.0" of the running library; static. */
const char *cairn_version(void);

/* The last error of this thread: one line that names the path or the number concerned and says
 * what can be done, without a newline. "" if there was none. Valid until the next call of this
 * library in this thread. Never NULL. */
const char *cairn_error(void);

/* ---- stage ---------------------------------------------------------------------------- */

#define CAIRN_NO_CUDA 0x1u /* never load the CUDA driver: plain memory */
#define CAIRN_OWN_ONLY 0x2u /* never ask the mount for memory: always CAIRN_OWN */

/* Zero means the default in every field but size. */
struct cairn_options {
	size_t size; /* sizeof(struct cairn_options): later versions add fields */
	unsigned flags; /* CAIRN_NO_CUDA | CAIRN_OWN_ONLY */
	/* 1 + the ordinal of the CUDA device whose primary context is used by threads without a
	 * current one. 0: the first device whose primary context the process has active; while
	 * there is none, memory is registered when the first copy from a device shows which it
	 * is */
	int device;
	/* maximum of memory kept for later shards while no shard uses it; UINT64_MAX: no limit,
	 * which is the default */
	uint64_t idle_bytes;
	/* Called once per reason when something works, but slower than possible: memory could not
	 * be registered, the mount gave no memory. text is one line, valid during the call. Called
	 * by the thread and inside the call concerned, no lock held; it must not call this library.
	 * NULL: not called, cairn_stage_stats counts the cases. */
	void (*notice)(void *arg, const char *text);
	void *notice_arg;
};

/* Opens a stage for the filesystem of `dir` (an existing directory): a cairnfs mount, or any
 * other. options may be NULL; nothing of it is kept but notice and notice_arg. Loads the
 * CUDA driver (libcuda.so.1) and calls cuInit if there is one; no GPU is no error. Allocates no
 * memory yet. While a stage of a mount has memory the mount is busy: close it before
 * unmounting. *stage is NULL after an error.
 * -ENOENT, -ENOTDIR, -EACCES: dir. -ENOTCONN: the mount's daemon is dead. */
int cairn_stage_open(const char *dir, const struct cairn_options *options, cairn_stage **stage);

/* Gives all memory back and frees the stage. NULL is allowed: 0. Committed shards still become
 * durable. -EBUSY: shards are neither committed nor aborted, or a call is in progress; nothing
 * changed. */
int cairn_stage_close(cairn_stage *stage);

/* Gives back the memory that no shard uses. For a trainer that stops saving for long. Committed
 * shards still become durable; the next shards map and register anew. */
int cairn_stage_trim(cairn_stage *stage);

/* Totals since the stage was opened, or present values ("now"). */
struct cairn_stats {
	uint64_t shards; /* committed */
	/* calls of cuMemHostRegister that registered something */
	uint64_t registrations;
	uint64_t buffers; /* pieces of memory, now */
	uint64_t buffer_bytes; /* their bytes, now */
	uint64_t registered_bytes; /* of those registered with CUDA, now */
	uint64_t mapped; /* pieces of memory created: constant in steady state */
	uint64_t bytes_device; /* copied from devices */
	uint64_t bytes_host; /* copied from host memory by cairn_shard_copy */
	uint64_t bytes_written; /* written with write(2) by commits of CAIRN_OWN */
	uint64_t bytes_loaded; /* by cairn_load */
	uint64_t unregistered; /* pieces of memory used although registration failed */
	/* shards made of CAIRN_OWN on a cairnfs mount: only of 1 MiB and more, smaller ones
	 * always are */
	uint64_t own;
};

/* Fills in the first `size` bytes (sizeof(struct cairn_stats)) of *out; fields unknown to this
 * version of the library are 0. */
int cairn_stage_stats(cairn_stage *stage, struct cairn_stats *out, size_t size);

/* The root of the cairnfs mount that the stage uses, or NULL: `dir` is not on one, or the mount
 * cannot give memory (no passthrough, an older cairnfs, CAIRN_OWN_ONLY). The stage's; valid until
 * close. */
const char *cairn_stage_mount(const cairn_stage *stage);

/* ---- writing: one shard is one file ------------------------------------------------------ */

#define CAIRN_EXCL 0x1u /* commit fails with -EEXIST if the name exists */

enum cairn_kind {
	CAIRN_OWN = 0, /* this process's memory, written at the commit */
	CAIRN_STAGED = 1, /* a staged file's: the commit copies nothing */
};

/* Memory for a file of at most `size` bytes (0 is allowed) with the name `path`. Nothing is visible
 * at path before the commit; path's directory must exist and is opened now, so a relative path
 * refers to the present working directory. An existing file at path is replaced by the commit, by a
 * rename; so is a symlink, which is not followed. path may be NULL: then cairn_shard_set_path must
 * come before the commit. A new checkpoint is recognized by its path, another directory or a
 * repeated name, and its shards get the memory of the checkpoint before the last; with NULL only by
 * 200 ms without an open shard, so a faster trainer gets new memory for each: pass any path that is
 * the same in every checkpoint, and set the right one later. If a committed file is opened before
 * it is durable (to read it, or to fsync it by its path), it keeps its memory: the next shard is
 * mapped and registered anew. cairn_wait does not do this. The memory contains what an earlier
 * shard left in it, or zeros: write all bytes that you commit. May block while memory is mapped and
 * registered (about 0.1 s/GB, the first two checkpoints of each size; later not). flags:
 * CAIRN_EXCL. *shard is NULL after an error. -ENOENT, -ENOTDIR, -EACCES: the directory. -EISDIR:
 * path is one. -ENAMETOOLONG. -EFBIG: size. */
int cairn_shard_create(cairn_stage *stage, const char *path, uint64_t size, unsigned flags,
		       cairn_shard **shard);

/* Sets another path, as above. After an error the old one remains. */
int cairn_shard_set_path(cairn_shard *shard, const char *path);

/* Its `size` bytes, at a multiple of 4096; at the same address for each shard made from this
 * memory. The caller may write there until commit or abort, by CPU or by its own CUDA calls,
 * which must be complete by then: cairn_shard_commit waits only for those of cairn_shard_copy.
 * NULL: after a fork, or shard is NULL. */
void *cairn_shard_data(cairn_shard *shard);

/* CAIRN_STAGED or CAIRN_OWN, for information; or -ECHILD. */
int cairn_shard_kind(cairn_shard *shard);

/* Copies n bytes from src to offset off of the shard. From device or managed memory: queued on
 * `stream`, in its order, and the call returns without waiting (if the shard's memory could not be
 * registered the driver may wait). The source must not change before the stream has reached the
 * copy: call cairn_shard_sync, or order later kernels behind the stream. From registered (pinned)
 * host memory: in the stream's order, too, and complete when the call returns. From other host
 * memory: complete when the call returns, independent of the stream. n = 0: nothing. The thread's
 * current context is used if it is of src's device, else that device's primary one. -EINVAL: off +
 * n is beyond the shard's size. -EIO: CUDA failed; the shard cannot be committed any more. */
int cairn_shard_copy(cairn_shard *shard, uint64_t off, const void *src, uint64_t n, void *stream);

/* Returns when the copies so far are complete and their sources may change: blocks without
 * spinning. -EIO: one of them failed; the shard cannot be committed any more. */
int cairn_shard_sync(cairn_shard *shard);

/* Sets user.cairn.device of the file, at most 255 bytes; NULL or "": none. If it is not called:
 * "cuda:0" (or "cuda:0,cuda:3") if cairn_shard_copy copied from devices, else "cpu" if it copied at
 * all. Best effort: a filesystem without such attributes loses it. -EINVAL: longer. */
int cairn_shard_device(cairn_shard *shard, const char *device);

/* Waits for the copies, then gives the file its name: until then the old file, or none, is visible,
 * from then on the whole new one of `size` bytes (at most that of cairn_shard_create). Mode and
 * owner as for a file created with mode 0666 and the umask. On a mount it is sealed: it takes its
 * place in the order now and becomes durable in the background. It is not durable yet on any
 * filesystem: use cairn_wait, or an fsync. The shard is freed in any case, also after an error, and
 * its memory must not be written any more. -EEXIST: CAIRN_EXCL. -EIO: a copy failed, no file
 * appears. -EINVAL: size, or no path: the shard is not freed then. Any other error: no file
 * appears, or the old one stays. */
int cairn_shard_commit(cairn_shard *shard, uint64_t size);

/* Waits for the copies, then frees the shard; no file appears. NULL is allowed: 0. */
int cairn_shard_abort(cairn_shard *shard);

/* ---- durable ---------------------------------------------------------------------------- */

/* Returns when path, a file or a directory with everything below it, is on stable storage: on a
 * cairnfs mount when user.cairn.state is `durable`; elsewhere it syncs the file and its directory,
 * or for a directory its filesystem, and timeout_ms is ignored. timeout_ms < 0: for ever; 0: checks
 * once. May be called without an open stage, by any thread. -ETIMEDOUT: not yet. -EIO: it failed;
 * cairn_error() has the reason (user.cairn.error). */
int cairn_wait(const char *path, int timeout_ms);

/* ---- reading ---------------------------------------------------------------------------- */

/* Copies n bytes at off of the file into dst. Into device or managed memory: read into registered
 * memory (kept by the stage: at most 128 MiB) and copied from there, queued on `stream`; returns
 * when all is read and queued, and dst has it when the stream has reached the copy. Into host
 * memory: read directly into it, complete at the return, independent of the stream. Nothing is
 * compared with checksums: cairn verify does that. -ENODATA: the file ends before off + n; what
 * there was may have been copied. -EIO: the file could not be read, or CUDA failed. */
int cairn_load(cairn_stage *stage, const char *path, uint64_t off, void *dst, uint64_t n,
	       void *stream);

/* Copies user.cairn.device of the file, with a NUL, into buf. Returns its length.
 * -ENODATA: nothing recorded (also if the filesystem has no attributes). -ERANGE: buf. */
int cairn_device(const char *path, char *buf, size_t size);

/* ---- archives --------------------------------------------------------------------------- */

/* CRC-32 as in zip (torch.save's archives), of one part after the other; start with 0. Several
 * times zlib's speed if the processor multiplies polynomials. */
uint32_t cairn_crc32(uint32_t crc, const void *bytes, size_t n);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
