/* SPDX-License-Identifier: MIT
 *
 * formats: reads the files of checkpoints.
 *
 * Pure functions over bytes: nothing here opens a file, prints, or has static variables. Depends on
 * libc alone. All input is untrusted: memory is limited to a constant times the number of bytes
 * actually read, never by a length that they claim; nothing recurses; a pickle is read as data and
 * never executed.
 *
 * Errors: 0 or a negative errno.
 *	-EBADMSG	the bytes violate the format; fmt_error says where
 *	-ENOTSUP	valid but not supported; fmt_error names what
 *	-E2BIG		larger than any real file, or expands out of proportion
 *	-ENOMEM
 *	else		the error of a source's read
 * Every function with a struct fmt_error parameter fills it on failure. Sizes, offsets and lengths
 * are in bytes unless stated otherwise; shapes, chunk offsets and strides in elements.
 *
 * Exported names begin with the format (pickle_, zip_, ...), or with fmt_ if they are shared.
 */
#ifndef CAIRN_FORMATS_H
#define CAIRN_FORMATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors and sources ----------------------------------------------------------- */

#define FMT_NOWHERE UINT64_MAX /* for errors without an offset */

struct fmt_error {
	uint64_t at; /* offset in the bytes given, or FMT_NOWHERE */
	char text[256]; /* one line, no full stop; control bytes as \xNN */
};

/* Bytes that can be read at any offset: a file, a part of one, or memory. Copied by value; its
 * creator owns ctx, which must outlive all copies. */
struct fmt_source {
	uint64_t size;
	uint64_t base; /* offset of byte 0 for read() */
	/* Reads exactly len bytes at off; 0 or -errno. Never called beyond base + size. */
	int (*read)(void *ctx, uint64_t off, void *buf, size_t len);
	void *ctx;
};

/* -EBADMSG if [off, off + len) is not within the source. */
int fmt_read(const struct fmt_source *s, uint64_t off, void *buf, size_t len);
/* A part of s, cut off at the end of s. */
struct fmt_source fmt_part(const struct fmt_source *s, uint64_t off, uint64_t size);
/* A source over memory, which it borrows. */
struct fmt_source fmt_memory(const void *bytes, size_t len);
/* A source over a regular file, whose descriptor it borrows. fd < 0 is returned; -EINVAL: it is no
 * regular file. A read returns -EIO if the file has become shorter. */
int fmt_file(int fd, struct fmt_source *out);
/* The same, and the descriptor is closed by fmt_file_close() or an error. ctx is not used. */
int fmt_file_own(int fd, struct fmt_source *out);
void fmt_file_close(void *ctx, struct fmt_source *s);

/* ---- text ------------------------------------------------------------------------- */

/* Length of the valid UTF-8 sequence at the beginning of n > 0 bytes; 0: none. If a NUL ends the
 * text, n may be 4. */
size_t fmt_utf8(const char *text, size_t n);
bool fmt_is_utf8(const char *text, size_t n);

/* ---- dtypes ----------------------------------------------------------------------- */

struct fmt_dtype {
	const char *name; /* PyTorch's: "bfloat16" */
	const char *safetensors; /* "BF16"; NULL: none */
	const char *storage; /* old typed storage: "BFloat16Storage"; NULL */
	unsigned bits; /* of one element; 4 and 6 occur */
};

/* Pointers into one table: equal types are equal pointers. NULL: unknown. */
const struct fmt_dtype *fmt_dtype_torch(const char *name, size_t len);
const struct fmt_dtype *fmt_dtype_safetensors(const char *name, size_t len);
const struct fmt_dtype *fmt_dtype_storage(const char *name, size_t len);

#define FMT_MAX_DIMS 64 /* PyTorch's own limit */

/* The product of n sizes; false on overflow. A size of zero gives 0. */
bool fmt_volume(const uint64_t *size, unsigned n, uint64_t *out);
/* The bytes of so many elements; false on overflow or if they end within a byte. */
bool fmt_bytes(const struct fmt_dtype *t, uint64_t elements, uint64_t *out);

/* ---- a set of tensors -------------------------------------------------------------
 * The model of every format: tensors, and the pieces of files that hold them. */

enum fmt_payload {
	FMT_RAW, /* the extent is the piece's elements, row-major, little-endian */
	FMT_STRIDED, /* the same with piece.stride; the extent includes the last element */
	FMT_ITEM, /* the extent is a torch.save zip that has the piece: dcp_item_read() */
};

struct fmt_piece {
	uint32_t file; /* index into the set's files; FMT_NO_FILE */
	uint8_t payload; /* enum fmt_payload */
	uint64_t at, length; /* the extent */
	const uint64_t *offset, *size; /* of the piece in the tensor; ndim each */
	const uint64_t *stride; /* ndim; NULL: row-major */
	const char *refusal; /* NULL, or why its bytes cannot be used */
};

#define FMT_NO_FILE UINT32_MAX

struct fmt_step { /* a step of the path to a value in a nested object */
	const char *key; /* dict key; NULL: list index */
	uint64_t index;
};

#define FMT_MAX_PATH 256u

struct fmt_path { /* n 0: unknown, only the name is known */
	const struct fmt_step *step;
	unsigned n;
};

struct fmt_tensor {
	const char *name;
	struct fmt_path path;
	const struct fmt_dtype *dtype; /* NULL: unknown dtype */
	const char *dtype_name; /* never NULL */
	unsigned ndim;
	bool growing; /* its shape is that which its pieces cover */
	uint64_t *shape;
	struct fmt_piece *piece;
	size_t n_pieces, cap_pieces;
};

struct fmt_blob { /* an item that is not a tensor */
	const char *name;
	struct fmt_path path;
	uint32_t file; /* FMT_NO_FILE; for opaque bytes, their file */
	uint64_t at, length;
	const char *pickle; /* NULL: opaque bytes; else a plain value, `length` bytes */
	const char *refusal; /* NULL, or why its bytes cannot be used */
};

struct fmt_file {
	const char *name; /* relative, without ".." */
	uint64_t need; /* its minimum size: max(at + length) */
	uint64_t items; /* extents in it */
};

struct fmt_set {
	/* in the order of reading; sorted by fmt_set_finish() */
	struct fmt_tensor *tensor;
	size_t n_tensors;
	struct fmt_blob *blob;
	size_t n_blobs;
	struct fmt_file *file;
	size_t n_files;
	struct fmt_set_inside *inside;
};

/* NULL: no memory. A set owns everything it points to. */
struct fmt_set *fmt_set_new(void);
void fmt_set_free(struct fmt_set *s); /* NULL is allowed */
/* The index of the file, which is added if it is new; or -errno. -EBADMSG: not a relative path that
 * stays below its directory. */
int64_t fmt_set_file(struct fmt_set *s, const char *name, size_t len, struct fmt_error *e);
/* Whether it is such a path. */
bool fmt_stays_below(const char *path, size_t len);
/* Looks up by name; NULL: none. Valid until the set changes. */
struct fmt_tensor *fmt_set_find(const struct fmt_set *s, const char *name, size_t len);
/* Sorts tensors and blobs by name and pieces by offset; of pieces with the same offset and size
 * (replicas) the first one is kept. Nothing can be added afterwards. */
void fmt_set_finish(struct fmt_set *s);
/* For a finished set: whether the pieces cover the tensor, each element once. -EBADMSG: they do
 * not, see e; -ENOTSUP: too many pieces that are on no common grid. grid (ndim values, may be NULL)
 * is set to the number of cuts in each dimension, all 0 if there is no grid. */
int fmt_set_cover(const struct fmt_tensor *t, uint64_t *grid, struct fmt_error *e);

/* ---- pickle -----------------------------------------------------------------------
 * Protocols 2 to 5, as data. */

enum pickle_kind {
	PICKLE_NONE,
	PICKLE_FALSE,
	PICKLE_TRUE,
	PICKLE_INT, /* u.i */
	PICKLE_BIG, /* u.s: two's complement, little-endian, more than 8 bytes */
	PICKLE_FLOAT, /* u.f */
	PICKLE_STR, /* u.s: UTF-8 as written, not checked */
	PICKLE_BYTES, /* u.s */
	PICKLE_TUPLE,
	PICKLE_LIST,
	PICKLE_SET,
	PICKLE_FROZENSET, /* u.seq */
	PICKLE_DICT, /* u.seq: key, value, key, value */
	PICKLE_GLOBAL, /* u.global */
	PICKLE_OBJECT, /* u.object */
	PICKLE_PERSID, /* u.id */
};

struct pickle_node;

struct pickle_seq {
	struct pickle_node **v;
	uint32_t n, cap;
};

struct pickle_more { /* rarely used parts of an object */
	struct pickle_node *kwargs; /* NULL unless NEWOBJ_EX */
	struct pickle_seq items, pairs; /* appended to it, set in it */
};

struct pickle_object { /* callable(*args), not called */
	struct pickle_node *callable, *args;
	struct pickle_node *state; /* NULL: there was no BUILD */
	struct pickle_more *more; /* never NULL; empty ones share one */
};

/* Allocated only as large as its kind needs: never copy one. Equal small ints share a node, and so
 * do constants such as None. */
struct pickle_node {
	uint8_t kind;
	uint8_t seen; /* for the code that walks the nodes: 0 after parsing */
	uint32_t at; /* offset of the first opcode that made it */
	union {
		int64_t i;
		double f;
		struct pickle_node *id;
		struct {
			const char *p; /* into the bytes parsed */
			uint32_t n;
		} s;
		struct pickle_seq seq;
		struct {
			struct pickle_node *module, *name; /* PICKLE_STR */
		} global;
		struct pickle_object object;
	} u;
};

struct pickle;

#define PICKLE_MAX_BYTES (2u << 30)

/* Nodes may be shared and may form cycles: limit any walk. The bytes are borrowed and must outlive
 * *out. *used (may be NULL): the offset after STOP. Takes at most 96 bytes of memory for each byte
 * of the first MiB and 12 for each byte after it; -E2BIG: more would be needed. */
int pickle_parse(const void *bytes, size_t len, struct pickle **out, size_t *used,
		 struct fmt_error *e);
void pickle_free(struct pickle *p); /* NULL is allowed */
struct pickle_node *pickle_root(const struct pickle *p);

bool pickle_is_str(const struct pickle_node *n, const char *text);
/* Whether n is the global of that name; a module that ends with "." or "*" is a prefix. */
bool pickle_is_global(const struct pickle_node *n, const char *module, const char *name);
/* Whether n is an object made by such a callable. */
bool pickle_is_object(const struct pickle_node *n, const char *module, const char *name);
/* An attribute of an object's state (a dict, or a tuple of dict and slots); NULL: none. */
struct pickle_node *pickle_attr(const struct pickle_node *object, const char *name);
/* A non-negative int. */
bool pickle_u64(const struct pickle_node *n, uint64_t *out);
/* The elements of a tuple, a list, or a torch.Size; NULL: n is none of these. */
const struct pickle_seq *pickle_sizes(const struct pickle_node *n);
/* "tuple", "str", ...; static. */
const char *pickle_kind_name(const struct pickle_node *n);

/* ---- JSON -------------------------------------------------------------------------
 * RFC 8259, strictly; UTF-8 checked; nested at most 64 deep; less than 2 GiB. */

struct json_doc;

/* The text is copied. -EBADMSG, -E2BIG, -ENOMEM. e may be NULL. */
int json_read(const char *text, size_t len, struct json_doc **out, struct fmt_error *e);
void json_doc_free(struct json_doc *d); /* NULL is allowed */
void json_doc_freep(struct json_doc **d);

/* A value is identified by its index; 0 is the document; -1 is "none", which every function
 * accepts. json_at() follows keys, separated by '.', from `from`; keys are compared as written,
 * without decoding escapes. */
int json_at(const struct json_doc *d, int from, const char *keys);
int json_count(const struct json_doc *d, int v); /* of an array; else 0 */
int json_item(const struct json_doc *d, int v, int i);
/* Children in order, -1 after the last; an object has key, value, key, value. */
int json_first(const struct json_doc *d, int parent);
int json_next(const struct json_doc *d, int parent, int child);
bool json_is_object(const struct json_doc *d, int v);
bool json_is_array(const struct json_doc *d, int v);
bool json_is_string(const struct json_doc *d, int v);
bool json_is_null(const struct json_doc *d, int v); /* true also for -1 */
uint64_t json_offset(const struct json_doc *d, int v); /* in the text */
/* For a non-negative integer without fraction or exponent that fits; else false. */
bool json_is_u64(const struct json_doc *d, int v, uint64_t *out);
uint64_t json_u64(const struct json_doc *d, int v); /* 0 if it is not a number */
double json_double(const struct json_doc *d, int v);
bool json_bool(const struct json_doc *d, int v);
/* The buffer size that a string needs at most, including NUL; 0 if it is not a string. */
size_t json_string_size(const struct json_doc *d, int v);
/* Writes the string as UTF-8 with a NUL; returns its length, or -EINVAL: not a string, or an
 * unpaired surrogate. The string may contain NULs. */
ssize_t json_string_copy(const struct json_doc *d, int v, char *buf);
/* malloc()ed; \u0080 to \u00ff become single bytes, as cairnfs writes them (names are bytes, JSON
 * is not). NULL: not a string, it contains a NUL, or no memory. */
char *json_bytes(const struct json_doc *d, int v);

/* ---- zip --------------------------------------------------------------------------
 * As torch.save writes it: entries stored, not compressed; zip64; sizes of local headers
 * may be zero (data descriptor), so the central directory is what counts. */

struct zip_entry {
	const char *name;
	uint64_t local; /* offset of its local header */
	uint64_t size;
	uint32_t crc; /* 0: none (torch.serialization.set_crc32_options(False)) */
	uint64_t data; /* offset of its bytes; 0 before zip_data() */
};

struct zip {
	struct zip_entry *entry; /* sorted by name */
	size_t n_entries;
	/* offset of the central directory: the end of the data */
	uint64_t end;
	struct zip_inside *inside;
};

/* Reads the end record and the central directory. -ENOTSUP: compressed, encrypted or split
 * archives. -EBADMSG also for entries that overlap or have the same name. */
int zip_open(const struct fmt_source *s, struct zip **out, struct fmt_error *e);
void zip_close(struct zip *z); /* NULL is allowed */
struct zip_entry *zip_find(const struct zip *z, const char *name);
/* Reads the local header, checks it against the directory and sets entry->data. */
int zip_data(const struct fmt_source *s, const struct zip *z, struct zip_entry *entry,
	     struct fmt_error *e);
/* Compares an entry's bytes with its CRC-32; without one it passes. buf: n bytes for reading. read
 * (may be NULL) is called for each part. -EBADMSG: they differ, or an error of zip_data() or of
 * reading; e->at is an offset in s. */
int zip_check(const struct fmt_source *s, const struct zip *z, struct zip_entry *entry, void *buf,
	      size_t n, void (*read)(void *ctx, uint64_t bytes), void *ctx, struct fmt_error *e);
/* The CRC-32 of zip, part after part; starts with 0. */
uint32_t zip_crc(uint32_t crc, const void *bytes, size_t len);

/* ---- files of tensors -------------------------------------------------------------
 * Each adds the contents of one file to a set. `file` is its index there (fmt_set_file()). After an
 * error the set is incomplete and can only be freed. */

/* A torch.save file. A tensor's name is `prefix` and its path in the object, separated by '.'; a
 * single tensor is named `prefix`. Tensors of kinds that cannot be read (sparse, quantized, ...)
 * are listed with a refusal. */
int torchfile_read(struct fmt_set *set, uint32_t file, const char *prefix,
		   const struct fmt_source *s, struct fmt_error *e);

/* DeepSpeed's model states: how many data-parallel ranks have optimizer states; 0: unknown. */
int torchfile_read_ranks(const struct fmt_source *s, uint32_t *ranks, struct fmt_error *e);

/* A torch.save file of a dict, with names and paths as DCP's flatten_state_dict() makes them. A
 * value that is not a tensor is a blob: a plain value (None, bool, int, float, str, lists, tuples
 * and dicts of them, and everything else that torch.load(weights_only=True) makes of these);
 * -ENOTSUP names any other value. `left_out` is called for things that DCP has no item for: empty
 * dicts, and attributes of dicts (a state_dict's _metadata). */
int torchfile_read_state(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
			 void (*left_out)(void *ctx, const char *what), void *ctx,
			 struct fmt_error *e);

/* A torch.save file of one plain value, such as DCP's items that are not tensors: set->blob[0],
 * with equal bytes for equal values whatever pickled them. -ENOTSUP: not a plain value. */
int torchfile_read_value(struct fmt_set *set, const struct fmt_source *s, struct fmt_error *e);

/* A safetensors file. With DCP_SHARDING_INFO in its metadata the tensors are pieces of larger ones.
 * -EBADMSG also if another file of the set has a whole tensor of the same name. */
int safetensors_read(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
		     struct fmt_error *e);

struct safetensors_place {
	const char *name;
	uint32_t file;
};

struct safetensors_index {
	struct safetensors_place *v; /* in the order of the text; the set owns the names */
	size_t n;
	uint64_t total; /* total_size, bytes; FMT_NOWHERE: missing or invalid */
};

/* model.safetensors.index.json: the file of each tensor. The caller frees v. */
int safetensors_index_read(struct fmt_set *set, const char *text, size_t len,
			   struct safetensors_index *out, struct fmt_error *e);

/* A DCP `.metadata` or `__{rank}.metadata`; those of several ranks are read into one set. Pieces
 * whose bytes were transformed (compressed, ...), or that have no file, are listed with a refusal.
 * The bytes are not needed after the call. */
int dcp_read(struct fmt_set *set, const void *bytes, size_t len, struct fmt_error *e);
/* Only the files of a `.metadata` and how long each is at least, in bounded memory: of any size.
 * -ENOMSG: another file, which is only named so: it is empty, no pickle begins there (0x80), or a
 * whole one of something else. -EBADMSG, -E2BIG: the list cannot be read. */
int dcp_files(struct fmt_set *set, const struct fmt_source *s, struct fmt_error *e);

/* For a finished set: whether the extents of that file are meaningless. PyTorch writes such
 * metadata with serialization_format=SAFETENSORS. Then dcp_read_header() takes the extents from the
 * file itself; -EBADMSG also if it lacks what the metadata lists. */
bool dcp_wants_header(const struct fmt_set *set, uint32_t file);
int dcp_read_header(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
		    struct fmt_error *e);

/* An item of a .distcp file (a torch.save zip of one tensor) into an empty set: one tensor,
 * one piece. */
int dcp_item_read(struct fmt_set *set, const struct fmt_source *item, struct fmt_error *e);

/* torchsnapshot's `.snapshot_metadata`; *ranks: the number of ranks that took it. Tensors not
 * stored as raw bytes (torch_save, quantized) are listed with a refusal. -ENOTSUP: YAML that is not
 * JSON. */
int snapshot_read(struct fmt_set *set, const char *text, size_t len, uint32_t *ranks,
		  struct fmt_error *e);
/* Sets the size of a file that is one object, whose length the metadata does not record. */
void snapshot_files(struct fmt_set *set, uint32_t file, uint64_t size);

/* ---- checkpoints ------------------------------------------------------------------
 * Recognizes what a directory (or one file) is, and whether it is complete, from names, sizes and
 * what the functions above read. */

enum ckpt_format {
	CKPT_NONE,
	CKPT_DCP, /* .metadata and __{rank}_{n}.distcp */
	CKPT_DCP_LOCAL, /* __{rank}.metadata instead */
	CKPT_MEGATRON, /* DCP with common.pt or in iter_N */
	CKPT_SAFETENSORS, /* one file, or model-i-of-n with an index */
	CKPT_HF_SHARDS, /* shard-i-model-j-of-n, by DCP */
	CKPT_TRAINER, /* Hugging Face's checkpoint-N */
	CKPT_DEEPSPEED,
	CKPT_ORBAX,
	CKPT_TORCH,
	CKPT_LIGHTNING, /* one .ckpt file */
	CKPT_SNAPSHOT, /* torchsnapshot */
};

enum ckpt_state {
	CKPT_WRITING,
	CKPT_INCOMPLETE,
	CKPT_COMPLETE,
};

struct ckpt_over { /* a version of a file that commits a checkpoint; all 0: none */
	struct timespec mtime;
	uint64_t ino; /* 0: unknown */
};

struct ckpt_name { /* an entry of the directory */
	const char *name;
	uint64_t size;
	bool dir;
	bool open; /* a writer has it open, if that can be known */
	const char *fault; /* NULL, or what its reader found wrong with it */
	struct timespec mtime;
	uint64_t ino; /* of a committing file, as the mount shows it; 0: unknown */
	/* replaced another version while this committing file existed: ckpt_commit_of() */
	struct ckpt_over over;
};

struct ckpt_kind {
	enum ckpt_format format;
	bool temporary; /* the directory's name says that it is not committed */
	bool has_step;
	uint64_t step;
	bool model; /* has a model's own file: ckpt_is_model_file() */
	/* how many are required (DeepSpeed: data-parallel; torchsnapshot: all); 0: unknown */
	uint32_t ranks;
};

struct ckpt_verdict {
	enum ckpt_state state;
	char why[200]; /* what is missing, or which file is open; "" if complete */
	uint32_t ranks, ranks_expected; /* 0: the format has no ranks, or they are unknown */
};

#define CKPT_QUIET_S 30 /* after so long without a change it is not being written */

/* Prefix for the name of a directory that `cairn rm` is removing. */
#define CKPT_REMOVED_PREFIX ".cairn-removed."
/* The same for one that `cairn tier fetch` is writing. */
#define CKPT_FETCH_PREFIX ".cairn-fetch."

/* Sorts by name, as strcmp(3) does; all functions below need sorted names. The index of the entry
 * of that name, or -1. */
void ckpt_names_sort(struct ckpt_name *v, size_t n);
ssize_t ckpt_names_find(const struct ckpt_name *v, size_t n, const char *name);

/* v sorted. dir_name: the last component of its path. What belongs to a checkpoint that is a
 * directory: all below it. But a directory that is one only because files of tensors lie in it,
 * and that has no step in its name, is loose: only those files are its. Subdirectories or .ckpt
 * files of other steps than the name's make it the directory of a run, which has no step. */
void ckpt_recognize(const char *dir_name, const struct ckpt_name *v, size_t n,
		    struct ckpt_kind *out);
/* One file that is a whole checkpoint. */
void ckpt_recognize_file(const char *name, struct ckpt_kind *out);
/* Told by files of tensors alone: nothing says what else there is, or that it is complete. */
bool ckpt_is_plain(enum ckpt_format f);
/* Shards below a model of which that was made: nothing but time tells whether they are complete,
 * and it is whole without them. */
bool ckpt_is_source_of(const struct ckpt_kind *part, const struct ckpt_kind *whole);
/* Of a directory: subdirectories and .ckpt files in it are checkpoints of their own. */
bool ckpt_is_loose(const struct ckpt_kind *k);
const char *ckpt_format_name(enum ckpt_format f); /* "dcp", ...; static */
const char *ckpt_state_name(enum ckpt_state s);

#define CKPT_SNAPSHOT_NAME ".snapshot_metadata"

/* The files that must be read before ckpt_judge(). */
bool ckpt_is_dcp(enum ckpt_format f);
/* The file that commits the checkpoint that shard `name` is in, which is written last; NULL: not a
 * shard. A shard may have one of two: which = 0, 1. buf holds the name. */
const char *ckpt_commit_of(const char *name, int which, char buf[64]);
/* Is it such a file? */
bool ckpt_commits_shards(const char *name);
/* The mark of a shard whose version replaced another while its committing file existed: that file's
 * mtime and inode number, and the checksum of the version it committed:
 * "SECONDS.NANOSECONDS [CHECKSUM] [ino=NUMBER]". Earlier versions wrote no number. */
#define CKPT_OVER_KEY "user.cairn.over"
#define CKPT_OVER_BYTES 128
/* its length */
int ckpt_over_format(const struct ckpt_over *o, const char *sum, char buf[CKPT_OVER_BYTES]);
/* False: not a mark, or the shard has the committed bytes again: `sum` is its own checksum. */
bool ckpt_over_parse(const char *text, const char *sum, struct ckpt_over *out);
/* Does the mark tell of the committing file that has this mtime and number? Two saves within a tick
 * of the clock, or within a second where the store keeps no parts of it, have one mtime. */
bool ckpt_over_is(const struct ckpt_over *o, struct timespec mtime, uint64_t ino);
/* `.metadata`, or, if there is none, `__{rank}.metadata`. */
bool ckpt_is_metadata(const char *name, bool global);
bool ckpt_is_index(const char *name); /* of safetensors */
bool ckpt_is_safetensors(const char *name);
bool ckpt_is_torch(const char *name);
bool ckpt_is_model_states(const char *name); /* of DeepSpeed */
/* Of safetensors, an index of them, or torch.save: what a plain directory consists of. */
bool ckpt_is_loose_file(const char *name);
/* Lightning's: a checkpoint by itself in a directory that is none, or loose. */
bool ckpt_is_one_file(const char *name);
/* model.safetensors, pytorch_model.bin, adapters, their parts and indexes. */
bool ckpt_is_model_file(const char *name);
/* Whether all its tensors are in torch.save files. */
bool ckpt_is_torch_only(enum ckpt_format f);

/* ---- what is in a checkpoint's files: content.c ----
 * Opens files by callbacks, so that the daemon and the tools share this code. */

struct ckpt_io {
	void *ctx;
	/* Opens a file of the checkpoint by its name there (which may contain '/'), never one
	 * outside it. 0 or -errno; its result is passed to close(). */
	int (*open)(void *ctx, const char *name, struct fmt_source *out);
	void (*close)(void *ctx, struct fmt_source *s);
	/* May be NULL. Called for each file that violates its format. Not 0: stops reading;
	 * ckpt_content_read() returns it. */
	int (*bad)(void *ctx, const char *file, const struct fmt_error *e, int err);
	/* Of one file of metadata; larger ones are errors, but for CKPT_SOUND the files of a larger
	 * DCP .metadata are listed, without tensors. */
	uint64_t max_bytes;
};

struct ckpt_content {
	struct ckpt_kind kind; /* input, as v and n; output: its ranks */
	struct ckpt_name *v; /* sorted; the array, names and faults are malloc()ed */
	size_t n;
	struct fmt_set *set; /* output; NULL: nothing to read, or nothing readable */
	struct safetensors_index index; /* output; .v NULL: none */
};

enum ckpt_depth {
	CKPT_TENSORS, /* only the files that say where the format's tensors are */
	CKPT_SOUND, /* those; torch.save files only checked to be complete */
	/* also those that metadata does not describe: torch.save files */
	CKPT_ALL,
};

/* Reads metadata and headers into c->set and finishes it. A broken file gets a fault, is passed to
 * bad(), and left out; files in subdirectories that metadata lists are added to the names. 0,
 * -ENOMEM, or bad()'s result: then the set is not finished and can only be freed. */
int ckpt_content_read(struct ckpt_content *c, const struct ckpt_io *io, enum ckpt_depth depth);
void ckpt_content_free(struct ckpt_content *c);

/* ---- packed: pack.c ----
 * As bytes for another process. Unpacking accepts untrusted bytes: -EBADMSG, -E2BIG, -ENOMEM, and
 * memory proportional to their number. */

struct fmt_packed {
	unsigned char *p; /* malloc()ed */
	size_t n, cap;
	bool no_memory;
};

void fmt_packed_free(struct fmt_packed *b);
/* Appends. -ENOMEM. Without blobs and paths, which the daemon does not need. */
int fmt_pack_set(struct fmt_packed *b, const struct fmt_set *s);
/* Unpacks into a new set and finishes it. */
int fmt_unpack_set(struct fmt_set *s, const void *bytes, size_t len, struct fmt_error *e);
/* The input of ckpt_content_read(): kind, v and n of c. */
int ckpt_pack_question(struct fmt_packed *b, const struct ckpt_content *c, uint64_t max_bytes,
		       enum ckpt_depth depth);
int ckpt_unpack_question(struct ckpt_content *c, uint64_t *max_bytes, enum ckpt_depth *depth,
			 const void *bytes, size_t len);
/* Its output. Unpacked into the content of the question; after an error that can only be freed. */
int ckpt_pack_answer(struct fmt_packed *b, const struct ckpt_content *c);
int ckpt_unpack_answer(struct ckpt_content *c, const void *bytes, size_t len, struct fmt_error *e);

/* The verdict. set (finished) holds what was read, NULL if nothing was readable; index may be NULL.
 * quiet_s: seconds since the last change in the directory. */
void ckpt_judge(const struct ckpt_kind *k, const struct ckpt_name *v, size_t n,
		const struct fmt_set *set, const struct safetensors_index *index, double quiet_s,
		struct ckpt_verdict *out);
/* For formats that do not record the number of ranks: takes it from the previous checkpoint.
 * ckpt_has_rank_set(): whether it is such a format, of which a complete checkpoint may turn out to
 * be incomplete. */
bool ckpt_has_rank_set(enum ckpt_format f);
void ckpt_expect_ranks(const struct ckpt_kind *k, uint32_t ranks, double quiet_s,
		       struct ckpt_verdict *out);

/* ---- the newest one: newest.c ---- */

struct ckpt_found {
	char *path; /* relative to where the search began */
	struct ckpt_kind kind;
	/* mtime of the directory, or of the file; of a loose one, of its newest file of tensors */
	struct timespec time;
	bool remote; /* in a tier, not in the store */
	bool above, part; /* of ckpt_found_sort(): of others, of another one */
};

/* Sorts the newest first, one directory after the other: in a directory by step, if there is one
 * (files may be copied in any order), else by time. Freed and left out are parts of another one
 * (an earlier version sent those to a tier), and loose ones above others that are no model: files
 * in the directory of a run. Returns how many remain. */
size_t ckpt_found_sort(struct ckpt_found *v, size_t n);
/* In sorted v: the checkpoint of the same directory and format that precedes v[i], or -1. */
ssize_t ckpt_found_before(const struct ckpt_found *v, size_t n, size_t i);
/* In sorted v: the newest safe one: of each directory the first that is safe, of these the latest
 * by time. is_safe is called no more often than necessary: 1, 0, or -errno, which ends the search.
 * The index, -ENOENT, or that errno. */
ssize_t ckpt_newest_safe(const struct ckpt_found *v, size_t n, int (*is_safe)(void *ctx, size_t i),
			 void *ctx);

/* ---- views ------------------------------------------------------------------------
 * A virtual file with a checkpoint's tensors: its headers are in memory, its data are gathered from
 * the checkpoint's files when they are read. Errors name the tensor: -ENOTSUP if it is not
 * supported, -EBADMSG if its pieces are inconsistent. */

/* A finished set, and where its pieces are within their items, once found. The set must outlive it.
 * Thread-safe, like all functions below that only read. */
struct view_base;

int view_base_new(const struct fmt_set *set, struct view_base **out); /* -ENOMEM */
void view_base_free(struct view_base *b); /* NULL is allowed */

/* Where a view's bytes come from. */
struct view_io {
	/* A source for a file of the set, valid until put(). 0 or -errno. */
	int (*get)(void *ctx, uint32_t file, struct fmt_source *out);
	void (*put)(void *ctx, uint32_t file);
	void *ctx;
	void *scratch; /* VIEW_SCRATCH bytes, for one call at a time */
	/* dcp_item_read(), done by another process; NULL: called directly */
	int (*item)(void *ctx, const struct fmt_source *item, struct fmt_set *set,
		    struct fmt_error *e);
};

#define VIEW_SCRATCH (1088u << 10)

struct view; /* constant once made; borrows its base */

void view_free(struct view *v); /* NULL is allowed */
uint64_t view_size(const struct view *v);
size_t view_memory(const struct view *v); /* bytes that it occupies */

/* Reads exactly len bytes at off. -EINVAL: outside the view; -EBADMSG, -ENOTSUP: a piece
 * contradicts the metadata; else an error of get() or a source. */
int view_read(const struct view *v, const struct view_io *io, uint64_t off, void *buf, size_t len,
	      struct fmt_error *e);

/* Tensors [from, to) of the set; of each only the part of rank `rank` of `ranks` when it is split
 * on dimension 0 as torch.chunk() does (scalars are on every rank). ranks 1: everything. */
struct view_pick {
	size_t from, to;
	uint32_t ranks, rank;
};

/* A safetensors file; the same bytes for the same set. Its tensors are sorted by element size,
 * largest first, then by name: this aligns all of them, as readers of safetensors want. */
int view_safetensors(struct view_base *b, const struct view_pick *pick, struct view **out,
		     struct fmt_error *e);

/* Hugging Face's parts: part i has the tensors cut[i] to cut[i + 1], at most `limit` bytes of data
 * unless it is one tensor. n + 1 cuts, which the caller frees. */
int view_split(const struct view_base *b, uint64_t limit, size_t **cut, size_t *n,
	       struct fmt_error *e);
#define VIEW_PART_NAME "model-%05zu-of-%05zu.safetensors" /* from 1 */
/* The model.safetensors.index.json of these parts. */
int view_index(struct view_base *b, const size_t *cut, size_t n, struct view **out,
	       struct fmt_error *e);

/* A torch.save archive of a flat dict of names and tensors, each with a storage of its own, for
 * torch.load(weights_only=True). */
int view_torch(struct view_base *b, struct view **out, struct fmt_error *e);

/* A DCP checkpoint written by one rank: the file VIEW_DCP_DATA, a torch.save archive for each
 * tensor in one chunk and for each blob, and its .metadata. Opaque blobs are copied. -ENOTSUP also
 * for names that are not UTF-8. */
#define VIEW_DCP_DATA "__0_0.distcp"
int view_dcp(struct view_base *b, struct view **data, struct view **metadata, struct fmt_error *e);

/* One tensor as a NumPy file, version 1.0. bfloat16 is <u2, eight-bit floats are |u1. */
int view_npy(struct view_base *b, size_t tensor, struct view **out, struct fmt_error *e);

#ifdef __cplusplus
}
#endif

#endif
