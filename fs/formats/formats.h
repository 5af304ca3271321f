/* SPDX-License-Identifier: MIT
 *
 * formats: what is in a checkpoint's files.
 *
 * Pure functions over bytes: nothing here opens a file, prints, or keeps a static. It rests
 * on libc alone. All input is hostile: memory is bounded by a constant times the bytes that
 * were really there, never by a length they claim; nothing recurses; a pickle is read as
 * data and never executed.
 *
 * Errors: 0 or a negative errno.
 *	-EBADMSG	the bytes are not what the format says; fmt_error tells where
 *	-ENOTSUP	understood, and not implemented; fmt_error names what
 *	-E2BIG		larger than anything real, or it unfolds beyond all proportion
 *	-ENOMEM
 *	else		what a source's read gave
 * Every function that takes a struct fmt_error fills it when it fails. Sizes, offsets and
 * lengths are bytes unless said; shapes, chunk offsets and strides are elements.
 *
 * Exported names carry the format's name (pickle_, zip_, ...), or fmt_ for what they share.
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

#define FMT_NOWHERE UINT64_MAX	/* an error that has no offset */

struct fmt_error {
	uint64_t at;		/* offset in the bytes given, or FMT_NOWHERE */
	char text[256];		/* one line, no full stop; control bytes as \xNN */
};

/* Bytes that can be read at any offset: a file, a part of one, or memory. Small, copied
 * freely; ctx is the maker's and must outlive it. */
struct fmt_source {
	uint64_t size;
	uint64_t base;		/* where byte 0 is in what read() knows */
	/* Exactly len bytes at off; 0 or -errno. Never called past base + size. */
	int (*read)(void *ctx, uint64_t off, void *buf, size_t len);
	void *ctx;
};

/* -EBADMSG when [off, off + len) is not within the source. */
int fmt_read(const struct fmt_source *s, uint64_t off, void *buf, size_t len);
/* A part of s; cut where s ends. */
struct fmt_source fmt_part(const struct fmt_source *s, uint64_t off, uint64_t size);
/* Memory; borrowed. */
struct fmt_source fmt_memory(const void *bytes, size_t len);

/* ---- text ------------------------------------------------------------------------- */

/* Length of the valid UTF-8 sequence that n > 0 bytes begin with, 0: none. Where a NUL ends them n
 * may be 4. */
size_t fmt_utf8(const char *text, size_t n);
bool fmt_is_utf8(const char *text, size_t n);

/* ---- dtypes ----------------------------------------------------------------------- */

struct fmt_dtype {
	const char *name;	/* PyTorch's: "bfloat16" */
	const char *safetensors; /* "BF16"; NULL: it has none */
	const char *storage;	/* old typed storage: "BFloat16Storage"; NULL */
	unsigned bits;		/* of one element; 4 and 6 exist */
};

/* Pointers into one table, so equal types are equal pointers; NULL: unknown. */
const struct fmt_dtype *fmt_dtype_torch(const char *name, size_t len);
const struct fmt_dtype *fmt_dtype_safetensors(const char *name, size_t len);
const struct fmt_dtype *fmt_dtype_storage(const char *name, size_t len);

#define FMT_MAX_DIMS 64		/* PyTorch's own limit */

/* Product of n sizes; false on overflow. Zero sizes give 0. */
bool fmt_volume(const uint64_t *size, unsigned n, uint64_t *out);
/* Bytes of that many elements; false on overflow or when they end within a byte. */
bool fmt_bytes(const struct fmt_dtype *t, uint64_t elements, uint64_t *out);

/* ---- a set of tensors -------------------------------------------------------------
 * What every format is turned into: tensors, and the pieces of files they lie in. */

enum fmt_payload {
	FMT_RAW,	/* the extent is the piece's elements, row-major, little-endian */
	FMT_STRIDED,	/* the same with piece.stride; the extent spans first to last element */
	FMT_ITEM,	/* the extent is a torch.save zip of the piece: dcp_item_read() */
};

struct fmt_piece {
	uint32_t file;			/* index into the set's files; FMT_NO_FILE */
	uint8_t payload;		/* enum fmt_payload */
	uint64_t at, length;		/* the extent */
	const uint64_t *offset, *size;	/* where in the tensor; ndim each */
	const uint64_t *stride;		/* ndim; NULL: row-major */
	const char *refusal;		/* NULL, or why its bytes cannot be used */
};

#define FMT_NO_FILE UINT32_MAX

struct fmt_step {		/* on the way down a nested object */
	const char *key;	/* of a dict; NULL: of a list */
	uint64_t index;
};

#define FMT_MAX_PATH 256u

struct fmt_path {		/* n 0: none is known, the name is all there is */
	const struct fmt_step *step;
	unsigned n;
};

struct fmt_tensor {
	const char *name;
	struct fmt_path path;
	const struct fmt_dtype *dtype;	/* NULL: not known here */
	const char *dtype_name;		/* always there */
	unsigned ndim;
	bool growing;			/* its shape is the hull of its pieces */
	uint64_t *shape;
	struct fmt_piece *piece;
	size_t n_pieces, cap_pieces;
};

struct fmt_blob {		/* an item beside the tensors */
	const char *name;
	struct fmt_path path;
	uint32_t file;		/* FMT_NO_FILE: of opaque bytes the file that has them */
	uint64_t at, length;
	const char *pickle;	/* NULL: opaque bytes; else a plain value, `length` bytes */
	const char *refusal;	/* NULL, or why its bytes cannot be used */
};

struct fmt_file {
	const char *name;	/* relative, no ".." in it */
	uint64_t need;		/* the size it must have at least: max(at + length) */
	uint64_t items;		/* extents in it */
};

struct fmt_set {
	struct fmt_tensor *tensor;	/* in the order they were found, or see fmt_set_finish() */
	size_t n_tensors;
	struct fmt_blob *blob;
	size_t n_blobs;
	struct fmt_file *file;
	size_t n_files;
	struct fmt_set_inside *inside;
};

/* NULL: no memory. A set owns all it points to. */
struct fmt_set *fmt_set_new(void);
void fmt_set_free(struct fmt_set *s);		/* NULL is fine */
/* Index of the file, added when it is new; or -errno. -EBADMSG: no relative path that
 * stays below its directory. */
int64_t fmt_set_file(struct fmt_set *s, const char *name, size_t len, struct fmt_error *e);
/* Is that such a path? */
bool fmt_stays_below(const char *path, size_t len);
/* By name; NULL: none. Valid until the set changes. */
struct fmt_tensor *fmt_set_find(const struct fmt_set *s, const char *name, size_t len);
/* Sorts tensors and blobs by name and pieces by place; of pieces with the same place and
 * size (replicas) the one found first stays. Nothing can be added afterwards. */
void fmt_set_finish(struct fmt_set *s);
/* Of a finished set: do the pieces cover the tensor, each element once? -EBADMSG: no, and e says
 * what; -ENOTSUP: too many pieces on no common grid to tell. grid (ndim, may be NULL) gets the
 * number of cuts in each dimension, all 0 when the pieces lie on no grid. */
int fmt_set_cover(const struct fmt_tensor *t, uint64_t *grid, struct fmt_error *e);

/* ---- pickle -----------------------------------------------------------------------
 * Protocols 2 to 5, as data. */

enum pickle_kind {
	PICKLE_NONE, PICKLE_FALSE, PICKLE_TRUE,
	PICKLE_INT,		/* u.i */
	PICKLE_BIG,		/* u.s: two's complement, little-endian, more than 8 bytes */
	PICKLE_FLOAT,		/* u.f */
	PICKLE_STR,		/* u.s: UTF-8 as written, not checked */
	PICKLE_BYTES,		/* u.s */
	PICKLE_TUPLE, PICKLE_LIST, PICKLE_SET, PICKLE_FROZENSET,	/* u.seq */
	PICKLE_DICT,		/* u.seq: key, value, key, value */
	PICKLE_GLOBAL,		/* u.global */
	PICKLE_OBJECT,		/* u.object */
	PICKLE_PERSID,		/* u.id */
};

struct pickle_node;

struct pickle_seq {
	struct pickle_node **v;
	uint32_t n, cap;
};

struct pickle_more {		/* what few objects have */
	struct pickle_node *kwargs;	/* NULL unless NEWOBJ_EX */
	struct pickle_seq items, pairs;	/* appended to it, set in it */
};

struct pickle_object {		/* callable(*args), not called */
	struct pickle_node *callable, *args;
	struct pickle_node *state;	/* NULL: never BUILT */
	struct pickle_more *more;	/* never NULL; one without anything is shared */
};

/* Only as long in memory as its kind needs: never copied. Small ints share a node, and so does what
 * has one value. */
struct pickle_node {
	uint8_t kind;
	uint8_t seen;		/* for who walks: 0 when parsed */
	uint32_t at;		/* offset of the opcode that made it, the first of those that share it */
	union {
		int64_t i;
		double f;
		struct pickle_node *id;
		struct {
			const char *p;	/* into the bytes parsed */
			uint32_t n;
		} s;
		struct pickle_seq seq;
		struct {
			struct pickle_node *module, *name;	/* PICKLE_STR */
		} global;
		struct pickle_object object;
	} u;
};

struct pickle;

#define PICKLE_MAX_BYTES (2u << 30)

/* Nodes may be shared and may form cycles: walk with a limit. The bytes are borrowed and
 * must outlive *out. *used (may be NULL): where STOP ended. Memory is at most
 * 96 bytes for each of the first MiB and 12 for each after it; -E2BIG: it would take more. */
int pickle_parse(const void *bytes, size_t len, struct pickle **out, size_t *used,
		 struct fmt_error *e);
void pickle_free(struct pickle *p);	/* NULL is fine */
struct pickle_node *pickle_root(const struct pickle *p);

bool pickle_is_str(const struct pickle_node *n, const char *text);
/* A global of that name; module may end in '.' or '*': then it is a prefix. */
bool pickle_is_global(const struct pickle_node *n, const char *module, const char *name);
/* An object made by such a callable. */
bool pickle_is_object(const struct pickle_node *n, const char *module, const char *name);
/* An attribute of an object's state (a dict, or a tuple of dict and slots); NULL: none. */
struct pickle_node *pickle_attr(const struct pickle_node *object, const char *name);
/* A non-negative int. */
bool pickle_u64(const struct pickle_node *n, uint64_t *out);
/* Elements of a tuple, a list, or torch.Size made of one; NULL: none of these. */
const struct pickle_seq *pickle_sizes(const struct pickle_node *n);
/* "tuple", "str", ...; static. */
const char *pickle_kind_name(const struct pickle_node *n);

/* ---- JSON -------------------------------------------------------------------------
 * RFC 8259, strictly; UTF-8 checked; nested at most 64 deep; less than 2 GiB. */

struct json_doc;

/* The text is copied. -EBADMSG, -E2BIG, -ENOMEM. e may be NULL. */
int json_read(const char *text, size_t len, struct json_doc **out, struct fmt_error *e);
void json_doc_free(struct json_doc *d);	/* NULL is fine */
void json_doc_freep(struct json_doc **d);

/* A value is named by its index; 0 is the document itself; -1 is "none", which every call
 * accepts. json_at() goes down keys divided by '.' from `from`; a key is compared as it is
 * written, escapes and all. */
int json_at(const struct json_doc *d, int from, const char *keys);
int json_count(const struct json_doc *d, int v);	/* of an array; 0 for all else */
int json_item(const struct json_doc *d, int v, int i);
/* Children in order, -1 after the last; an object's are key, value, key, value. */
int json_first(const struct json_doc *d, int parent);
int json_next(const struct json_doc *d, int parent, int child);
bool json_is_object(const struct json_doc *d, int v);
bool json_is_array(const struct json_doc *d, int v);
bool json_is_string(const struct json_doc *d, int v);
bool json_is_null(const struct json_doc *d, int v);	/* also when there is none */
uint64_t json_offset(const struct json_doc *d, int v);	/* in the text */
/* A non-negative integer without fraction or exponent that fits; else false. */
bool json_is_u64(const struct json_doc *d, int v, uint64_t *out);
uint64_t json_u64(const struct json_doc *d, int v);	/* 0 when it is not a number */
double json_double(const struct json_doc *d, int v);
bool json_bool(const struct json_doc *d, int v);
/* Room a string needs at most, NUL included; 0 when it is none. */
size_t json_string_room(const struct json_doc *d, int v);
/* Writes it as UTF-8 and NUL-terminates; its length, -EINVAL: no string, or a surrogate
 * without its pair. It may hold NULs. */
ssize_t json_string_copy(const struct json_doc *d, int v, char *buf);
/* malloc()ed; \u0080 to \u00ff become the single bytes cairnfs wrote so (names are bytes,
 * JSON is not). NULL when it is not a string, or holds a NUL, or no memory. */
char *json_bytes(const struct json_doc *d, int v);

/* ---- zip --------------------------------------------------------------------------
 * As torch.save writes it: entries stored, not compressed; zip64; sizes of local headers
 * may be zero (data descriptor), so the central directory is what counts. */

struct zip_entry {
	const char *name;
	uint64_t local;		/* offset of its local header */
	uint64_t size;
	uint32_t crc;		/* 0: none (torch.serialization.set_crc32_options(False)) */
	uint64_t data;		/* offset of its bytes; 0 until zip_data() found it */
};

struct zip {
	struct zip_entry *entry;	/* sorted by name */
	size_t n_entries;
	uint64_t end;			/* offset of the central directory: where data ends */
	struct zip_inside *inside;
};

/* Reads the end record and the central directory. -ENOTSUP: compressed, encrypted or split
 * archives. Entries that overlap or share a name are -EBADMSG. */
int zip_open(const struct fmt_source *s, struct zip **out, struct fmt_error *e);
void zip_close(struct zip *z);	/* NULL is fine */
struct zip_entry *zip_find(const struct zip *z, const char *name);
/* Reads the local header, checks it against the directory and sets entry->data. */
int zip_data(const struct fmt_source *s, const struct zip *z, struct zip_entry *entry,
	     struct fmt_error *e);
/* The bytes of an entry against its CRC-32; an entry without one passes. buf: n bytes to read
 * into. read (may be NULL) is told of each part. -EBADMSG: they differ, or what zip_data() and
 * reading give; e->at is an offset in s. */
int zip_check(const struct fmt_source *s, const struct zip *z, struct zip_entry *entry, void *buf,
	      size_t n, void (*read)(void *ctx, uint64_t bytes), void *ctx, struct fmt_error *e);
/* CRC-32 as zip has it, of one part after the other; starts from 0. */
uint32_t zip_crc(uint32_t crc, const void *bytes, size_t len);

/* ---- files of tensors -------------------------------------------------------------
 * Each adds what is in one file to a set. `file` is its index there (fmt_set_file()). On an
 * error the set holds part of it: fit to be freed only. */

/* A torch.save file. Tensors are named by their way down the object, divided by '.', after
 * `prefix`; a tensor alone has the name `prefix`. Kinds of tensors that cannot be read
 * (sparse, quantized, ...) are listed with a refusal. */
int torchfile_read(struct fmt_set *set, uint32_t file, const char *prefix,
		   const struct fmt_source *s, struct fmt_error *e);

/* DeepSpeed's model states: how many data-parallel ranks have optimizer states; 0: not told. */
int torchfile_read_ranks(const struct fmt_source *s, uint32_t *ranks, struct fmt_error *e);

/* A torch.save file of a dict, named as DCP's flatten_state_dict() names what is in one, with
 * the paths. What is no tensor is a blob of a plain value (None, bool, int, float, str, lists,
 * tuples and dicts of them, and what else torch.load(weights_only=True) makes of these); -ENOTSUP
 * names what is neither. `left_out` is told of what DCP has no item for: dicts that hold nothing,
 * and attributes of dicts (a state_dict's _metadata). */
int torchfile_read_state(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
			 void (*left_out)(void *ctx, const char *what), void *ctx,
			 struct fmt_error *e);

/* A torch.save file of one plain value, such as DCP's items that are no tensors: set->blob[0], of
 * equal bytes for equal values whoever pickled them. -ENOTSUP: no plain value. */
int torchfile_read_value(struct fmt_set *set, const struct fmt_source *s, struct fmt_error *e);

/* A safetensors file. With DCP_SHARDING_INFO in its metadata the tensors are pieces of
 * larger ones. -EBADMSG also for a name that another file of the set has as a whole tensor. */
int safetensors_read(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
		     struct fmt_error *e);

struct safetensors_place {
	const char *name;
	uint32_t file;
};

struct safetensors_index {
	struct safetensors_place *v;	/* in the order of the text; the set owns the names */
	size_t n;
	uint64_t total;			/* total_size, bytes; FMT_NOWHERE: not said, or not so */
};

/* model.safetensors.index.json: which file each tensor is in. Free v. */
int safetensors_index_read(struct fmt_set *set, const char *text, size_t len,
			   struct safetensors_index *out, struct fmt_error *e);

/* A DCP `.metadata` or `__{rank}.metadata`; those of several ranks go into one set. Pieces
 * whose bytes were transformed (compressed, ...), or that no file is named for, are listed
 * with a refusal. The bytes may go once it returned. */
int dcp_read(struct fmt_set *set, const void *bytes, size_t len, struct fmt_error *e);

/* Of a finished set: do the extents of that file say nothing about where its tensors are?
 * PyTorch writes such metadata with serialization_format=SAFETENSORS. Then dcp_read_header()
 * takes the places from the file itself; -EBADMSG also when it does not hold what the
 * metadata lists. */
bool dcp_wants_header(const struct fmt_set *set, uint32_t file);
int dcp_read_header(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
		    struct fmt_error *e);

/* An item of a .distcp file (a torch.save zip of one tensor) into an empty set: one tensor,
 * one piece. */
int dcp_item_read(struct fmt_set *set, const struct fmt_source *item, struct fmt_error *e);

/* torchsnapshot's `.snapshot_metadata`; *ranks: that took it. Tensors that are not there as their bare
 * bytes (torch_save, quantized) are listed with a refusal. -ENOTSUP: YAML that is no JSON. */
int snapshot_read(struct fmt_set *set, const char *text, size_t len, uint32_t *ranks,
		  struct fmt_error *e);
/* Of a file that is one object, which the metadata does not tell the length of: its size. */
void snapshot_files(struct fmt_set *set, uint32_t file, uint64_t size);

/* ---- checkpoints ------------------------------------------------------------------
 * What a directory (or one file) is, and whether it is whole, told from names, sizes and
 * what the functions above read. */

enum ckpt_format {
	CKPT_NONE,
	CKPT_DCP,		/* .metadata and __{rank}_{n}.distcp */
	CKPT_DCP_LOCAL,		/* __{rank}.metadata instead */
	CKPT_MEGATRON,		/* DCP with common.pt or in iter_N */
	CKPT_SAFETENSORS,	/* one file, or model-i-of-n with an index */
	CKPT_HF_SHARDS,		/* shard-i-model-j-of-n, by DCP */
	CKPT_TRAINER,		/* Hugging Face's checkpoint-N */
	CKPT_DEEPSPEED,
	CKPT_ORBAX,
	CKPT_TORCH,
	CKPT_LIGHTNING,		/* one .ckpt file */
	CKPT_SNAPSHOT,		/* torchsnapshot */
};

enum ckpt_state {
	CKPT_WRITING,
	CKPT_INCOMPLETE,
	CKPT_COMPLETE,
};

struct ckpt_name {		/* an entry of the directory */
	const char *name;
	uint64_t size;
	bool dir;
	bool open;		/* someone writes it now, where that can be known */
	const char *fault;	/* NULL, or what its reader found wrong with it */
	struct timespec mtime;
	struct timespec over;	/* its version replaced another while a committing file of this mtime
				 * stood: ckpt_commit_of(); 0: none is known */
};

struct ckpt_kind {
	enum ckpt_format format;
	bool temporary;		/* the directory's name says that it is not committed */
	bool has_step;
	uint64_t step;
	uint32_t ranks;		/* DeepSpeed: data-parallel ones that it must have; torchsnapshot: all;
				 * 0: not told */
};

struct ckpt_verdict {
	enum ckpt_state state;
	char why[200];		/* what is missing, or who writes; "" when complete */
	uint32_t ranks, ranks_expected;	/* 0: the format has no ranks, or they are not known */
};

#define CKPT_QUIET_S 30		/* without a change for that long it is not being written */

/* Put before the name of a directory that `cairn rm` has begun to remove. */
#define CKPT_REMOVED_PREFIX ".cairn-removed."

/* By name, as strcmp(3) has it: so all below want v. The index of the entry of that name, or -1. */
void ckpt_names_sort(struct ckpt_name *v, size_t n);
ssize_t ckpt_names_find(const struct ckpt_name *v, size_t n, const char *name);

/* v sorted. dir_name: the last component of its path. */
void ckpt_recognize(const char *dir_name, const struct ckpt_name *v, size_t n,
		    struct ckpt_kind *out);
/* One file that is a whole checkpoint. */
void ckpt_recognize_file(const char *name, struct ckpt_kind *out);
const char *ckpt_format_name(enum ckpt_format f);	/* "dcp", ...; static */
const char *ckpt_state_name(enum ckpt_state s);

#define CKPT_SNAPSHOT_NAME ".snapshot_metadata"

/* What the reader of a checkpoint must take from its files before ckpt_judge(). */
bool ckpt_is_dcp(enum ckpt_format f);
/* The file that is written last, and so commits, when `name` is a shard; else NULL. A shard may
 * have two, one of which stands: which = 0, 1. buf holds the name. */
const char *ckpt_commit_of(const char *name, int which, char buf[64]);
/* The mark of a shard whose version replaced another while such a file stood: that file's mtime, and
 * the checksum of the version it committed, "SECONDS.NANOSECONDS [CHECKSUM]". */
#define CKPT_OVER_KEY "user.cairn.over"
#define CKPT_OVER_ROOM 96
int ckpt_over_print(struct timespec t, const char *sum, char buf[CKPT_OVER_ROOM]);	/* its length */
/* False: no such mark, or the shard has the committed bytes again: `sum` is its own checksum. */
bool ckpt_over_parse(const char *text, const char *sum, struct timespec *out);
/* `.metadata`, or if that is not there `__{rank}.metadata`. */
bool ckpt_is_metadata(const char *name, bool global);
bool ckpt_is_index(const char *name);	/* of safetensors */
bool ckpt_is_safetensors(const char *name);
bool ckpt_is_torch(const char *name);
bool ckpt_is_model_states(const char *name);	/* of DeepSpeed */
/* Are its tensors in torch.save files, rather than beside some? */
bool ckpt_is_torch_only(enum ckpt_format f);

/* ---- what is in a checkpoint's files: content.c ----
 * The files are reached through callbacks, so that the daemon and the tools read alike. */

struct ckpt_io {
	void *ctx;
	/* A file of the checkpoint by its name there (which may hold '/'), never one outside it.
	 * 0 or -errno; what it gave is handed to close(). */
	int (*open)(void *ctx, const char *name, struct fmt_source *out);
	void (*close)(void *ctx, struct fmt_source *s);
	/* May be NULL: told of each file that is not what its format says. Not 0: no more is read,
	 * and that is what ckpt_content_read() returns. */
	int (*bad)(void *ctx, const char *file, const struct fmt_error *e, int err);
	uint64_t max_bytes;	/* of one file of metadata: what is larger cannot be read */
};

struct ckpt_content {
	struct ckpt_kind kind;		/* given, as v and n; found: its ranks */
	struct ckpt_name *v;		/* sorted; the array, names and faults are malloc()ed */
	size_t n;
	struct fmt_set *set;		/* found; NULL: nothing to read, or nothing readable */
	struct safetensors_index index;	/* found; .v NULL: none */
};

enum ckpt_depth {
	CKPT_TENSORS,		/* the files that say where the format's tensors are, no others */
	CKPT_SOUND,		/* those; of torch.save files no more than that they are whole */
	CKPT_ALL,		/* also what metadata does not describe: torch.save files beside it */
};

/* Reads metadata and headers into c->set and finishes it. A file that is broken gets a fault, is
 * told, and left out; files in directories below that metadata lists join the names. 0, -ENOMEM,
 * what bad() returned: then the set is not finished, fit to be freed only. */
int ckpt_content_read(struct ckpt_content *c, const struct ckpt_io *io, enum ckpt_depth depth);
void ckpt_content_free(struct ckpt_content *c);

/* ---- packed: pack.c ----
 * As bytes for another process. Whoever unpacks need not trust who packed: -EBADMSG, -E2BIG, -ENOMEM,
 * and memory is bounded by the bytes' number. */

struct fmt_packed {
	unsigned char *p;	/* malloc()ed */
	size_t n, cap;
	bool no_memory;
};

void fmt_packed_free(struct fmt_packed *b);
/* Appends. -ENOMEM. Without blobs and the ways down: the daemon asks for neither. */
int fmt_pack_set(struct fmt_packed *b, const struct fmt_set *s);
/* Into a new set, and finishes it. */
int fmt_unpack_set(struct fmt_set *s, const void *bytes, size_t len, struct fmt_error *e);
/* What ckpt_content_read() is given; kind, v and n of c. */
int ckpt_pack_question(struct fmt_packed *b, const struct ckpt_content *c, uint64_t max_bytes,
		       enum ckpt_depth depth);
int ckpt_unpack_question(struct ckpt_content *c, uint64_t *max_bytes, enum ckpt_depth *depth,
			 const void *bytes, size_t len);
/* What it found. Unpacked into the content that was asked about: on an error fit to be freed only. */
int ckpt_pack_answer(struct fmt_packed *b, const struct ckpt_content *c);
int ckpt_unpack_answer(struct ckpt_content *c, const void *bytes, size_t len, struct fmt_error *e);

/* The verdict. set (finished) holds what was read, NULL where nothing could be; index may
 * be NULL. quiet_s: seconds since the last change in the directory. */
void ckpt_judge(const struct ckpt_kind *k, const struct ckpt_name *v, size_t n,
		const struct fmt_set *set, const struct safetensors_index *index, double quiet_s,
		struct ckpt_verdict *out);
/* Where the format says nothing of the number of ranks: that of the checkpoint before.
 * ckpt_has_rank_set(): such a format, of which a complete one may turn out not to be. */
bool ckpt_has_rank_set(enum ckpt_format f);
void ckpt_expect_ranks(const struct ckpt_kind *k, uint32_t ranks, double quiet_s,
		       struct ckpt_verdict *out);

/* ---- the newest one: newest.c ---- */

struct ckpt_found {
	char *path;		/* below where was searched */
	struct ckpt_kind kind;
	struct timespec time;	/* mtime of the directory, or of the file */
};

/* Puts the newest first: in one directory by step, where there is one (files may be copied in any
 * order), else by time; one directory after the other. Directories that are no more than loose files
 * of tensors beside other checkpoints are freed and left out. Returns how many stay. */
size_t ckpt_found_sort(struct ckpt_found *v, size_t n);
/* Of the sorted: the checkpoint of the same directory and format that came before v[i], or -1. */
ssize_t ckpt_found_before(const struct ckpt_found *v, size_t n, size_t i);
/* Of the sorted: the newest that is safe: of each directory the first that is, of these the
 * latest by time. is_safe is asked for no more than that takes: 1, 0, or -errno, which ends it.
 * Index, -ENOENT, or that errno. */
ssize_t ckpt_newest_safe(const struct ckpt_found *v, size_t n,
			 int (*is_safe)(void *ctx, size_t i), void *ctx);

/* ---- views ------------------------------------------------------------------------
 * A checkpoint's tensors laid out as another file, which nobody writes: its headers are in
 * memory, its data are gathered from the checkpoint's files when they are read. Refused, with
 * the tensor's name, is what cannot be served: -ENOTSUP what is not implemented, -EBADMSG
 * what does not add up. */

/* A finished set, and where within their items its pieces were found to lie. The set must
 * outlive it. Thread-safe, as all below that only reads. */
struct view_base;

int view_base_new(const struct fmt_set *set, struct view_base **out);	/* -ENOMEM */
void view_base_free(struct view_base *b);	/* NULL is fine */

/* Where a view's bytes come from. */
struct view_io {
	/* A source over a file of the set, usable until put(). 0 or -errno. */
	int (*get)(void *ctx, uint32_t file, struct fmt_source *out);
	void (*put)(void *ctx, uint32_t file);
	void *ctx;
	void *scratch;		/* VIEW_SCRATCH bytes, not used by two calls at once */
	/* dcp_item_read(), done elsewhere; NULL: here */
	int (*item)(void *ctx, const struct fmt_source *item, struct fmt_set *set, struct fmt_error *e);
};

#define VIEW_SCRATCH (1088u << 10)

struct view;			/* read-only once made; borrows its base */

void view_free(struct view *v);	/* NULL is fine */
uint64_t view_size(const struct view *v);
size_t view_memory(const struct view *v);	/* bytes that it takes */

/* Exactly len bytes at off. -EINVAL: not within the view; -EBADMSG, -ENOTSUP: a piece is not
 * what the metadata says; else what get() or a source gave. */
int view_read(const struct view *v, const struct view_io *io, uint64_t off, void *buf, size_t len,
	      struct fmt_error *e);

/* Tensors [from, to) of the set; of each only what rank `rank` of `ranks` has when it is split
 * on dimension 0 as torch.chunk() does (scalars are on every rank). ranks 1: all of it. */
struct view_pick {
	size_t from, to;
	uint32_t ranks, rank;
};

/* A safetensors file; the same bytes for the same set. Its tensors are in order of element
 * size, largest first, then of name: so all are aligned, as safetensors' readers want. */
int view_safetensors(struct view_base *b, const struct view_pick *pick, struct view **out,
		     struct fmt_error *e);

/* Hugging Face's parts: cut[i] to cut[i + 1] are the tensors of part i, at most `limit` bytes
 * of data unless it is one tensor. n + 1 cuts, which the caller frees. */
int view_split(const struct view_base *b, uint64_t limit, size_t **cut, size_t *n,
	       struct fmt_error *e);
#define VIEW_PART_NAME "model-%05zu-of-%05zu.safetensors"	/* from 1 */
/* model.safetensors.index.json of them. */
int view_index(struct view_base *b, const size_t *cut, size_t n, struct view **out,
	       struct fmt_error *e);

/* A torch.save archive of a flat dict of name to tensor, each with a storage of its own, that
 * torch.load(weights_only=True) opens. */
int view_torch(struct view_base *b, struct view **out, struct fmt_error *e);

/* A DCP checkpoint written by one rank: the file VIEW_DCP_DATA, a torch.save archive for each
 * tensor in one chunk and for each blob, and its .metadata. Blobs that are opaque are carried as
 * they are. -ENOTSUP also for names that are not UTF-8. */
#define VIEW_DCP_DATA "__0_0.distcp"
int view_dcp(struct view_base *b, struct view **data, struct view **metadata,
	     struct fmt_error *e);

/* One tensor as a NumPy file, version 1.0. bfloat16 is <u2, eight-bit floats are |u1. */
int view_npy(struct view_base *b, size_t tensor, struct view **out, struct fmt_error *e);

#ifdef __cplusplus
}
#endif

#endif
