/* SPDX-License-Identifier: MIT
 *
 * Recognizes the format of a checkpoint, and decides whether it is complete.
 *
 * The formats, and what makes a checkpoint of each complete:
 *	DCP, Megatron	.metadata; every file it lists exists and is long enough; Megatron: also
 *			common.pt and metadata.json
 *	DCP rank-local	each rank's metadata; together they cover each tensor
 *	safetensors	with an index: every file of weight_map, and the names in them
 *	DCP to HF	the index; without one there is no marker: the shards cover each tensor,
 *			the rank set is complete, no recent change
 *	HF Trainer	trainer_state.json, written last
 *	DeepSpeed	no marker in the directory: the ranks that its model states tell, else the
 *			rank set of the previous one; no recent change
 *	Orbax		the directory's rename, or commit_success.txt
 *	torch_checkpointing	the directory's rename, from tmp_NAME
 *	torch.save, Lightning	the zip's end record
 *	torchsnapshot	.snapshot_metadata; every location it lists exists and is long enough
 */
#include "fs/formats/inside.h"
#include "io/number.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- names ------------------------------------------------------------------------ */

static bool ends(const char *s, const char *with)
{
	size_t n = strlen(s), m = strlen(with);

	return n >= m && !strcmp(s + n - m, with);
}

static bool starts(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/* Reads at most 18 digits at *s; moves *s behind them. */
static bool number(const char **s, uint64_t *out)
{
	const char *start = *s;

	*out = 0;
	for (; **s >= '0' && **s <= '9' && *s - start < 18; (*s)++)
		*out = *out * 10 + (uint64_t)(**s - '0');
	return *s > start;
}

/* Matches a name against text with numbers: "__%_%.distcp". */
static bool matches(const char *s, const char *pattern, uint64_t *out)
{
	for (; *pattern; pattern++) {
		if (*pattern == '%') {
			if (!number(&s, out++))
				return false;
		} else if (*s++ != *pattern) {
			return false;
		}
	}
	return !*s;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct ckpt_name *)a)->name, ((const struct ckpt_name *)b)->name);
}

void ckpt_names_sort(struct ckpt_name *v, size_t n)
{
	if (n)
		qsort(v, n, sizeof(*v), by_name);
}

ssize_t ckpt_names_find(const struct ckpt_name *v, size_t n, const char *name)
{
	const struct ckpt_name key = {.name = name};
	const struct ckpt_name *found = n ? bsearch(&key, v, n, sizeof(*v), by_name) : NULL;

	return found ? found - v : -1;
}

static const struct ckpt_name *find(const struct ckpt_name *v, size_t n, const char *name)
{
	ssize_t i = ckpt_names_find(v, n, name);

	return i < 0 ? NULL : &v[i];
}

bool ckpt_is_metadata(const char *name, bool global)
{
	uint64_t rank;

	return global ? !strcmp(name, ".metadata") : matches(name, "__%.metadata", &rank);
}

bool ckpt_is_index(const char *name)
{
	return ends(name, ".safetensors.index.json");
}

bool ckpt_is_safetensors(const char *name)
{
	return ends(name, ".safetensors");
}

bool ckpt_is_torch(const char *name)
{
	return ends(name, ".pt") || ends(name, ".pth") || ends(name, ".ckpt") ||
	       (ends(name, ".bin") &&
		(starts(name, "pytorch_model") || starts(name, "adapter_model") ||
		 starts(name, "optimizer") || starts(name, "scheduler")));
}

bool ckpt_is_loose_file(const char *name)
{
	return ckpt_is_safetensors(name) || ckpt_is_index(name) || ckpt_is_torch(name);
}

bool ckpt_is_one_file(const char *name)
{
	return ends(name, ".ckpt");
}

bool ckpt_is_model_file(const char *name)
{
	return ckpt_is_safetensors(name) || ckpt_is_index(name) ||
	       (ends(name, ".bin") &&
		(starts(name, "pytorch_model") || starts(name, "adapter_model")));
}

bool ckpt_is_model_states(const char *name)
{
	return ends(name, "_model_states.pt");
}

const char *ckpt_commit_of(const char *name, int which, char buf[64])
{
	uint64_t x[3];

	if (matches(name, "__%_%.distcp", x)) {
		snprintf(buf, 64, which ? "__%llu.metadata" : ".metadata",
			 (unsigned long long)x[0]);
		return buf;
	}
	if (which || !matches(name, "model-%-of-%.safetensors", x))
		return NULL;
	snprintf(buf, 64, "model.safetensors.index.json");
	return buf;
}

bool ckpt_commits_shards(const char *name)
{
	return ckpt_is_metadata(name, true) || ckpt_is_metadata(name, false) ||
	       !strcmp(name, "model.safetensors.index.json");
}

int ckpt_over_format(const struct ckpt_over *o, const char *sum, char buf[CKPT_OVER_BYTES])
{
	int n = snprintf(buf, CKPT_OVER_BYTES, "%lld.%09ld%s%.48s", (long long)o->mtime.tv_sec,
			 o->mtime.tv_nsec, *sum ? " " : "", sum);

	if (o->ino)
		n += snprintf(buf + n, CKPT_OVER_BYTES - (size_t)n, " ino=%llu",
			      (unsigned long long)o->ino);
	return n;
}

bool ckpt_over_parse(const char *s, const char *sum, struct ckpt_over *out)
{
	uint64_t sec, ns, ino = 0;

	if (!number(&s, &sec) || *s++ != '.' || !number(&s, &ns) || ns > 999999999)
		return false;
	while (*s == ' ') {
		const char *word = ++s;
		size_t len = strcspn(s, " ");

		s += len;
		if (*sum && len == strlen(sum) && !strncmp(word, sum, len))
			return false;
		if (starts(word, "ino=")) {
			word += 4;
			if (!number_next(&word, &ino) || word != s)
				ino = 0;
		}
	}
	*out = (struct ckpt_over){{(time_t)sec, (long)ns}, ino};
	return true;
}

bool ckpt_over_is(const struct ckpt_over *o, struct timespec mtime, uint64_t ino)
{
	return o->mtime.tv_sec == mtime.tv_sec && o->mtime.tv_nsec == mtime.tv_nsec &&
	       (!o->ino || !ino || o->ino == ino);
}

bool ckpt_is_dcp(enum ckpt_format f)
{
	return f == CKPT_DCP || f == CKPT_DCP_LOCAL || f == CKPT_MEGATRON;
}

bool ckpt_is_torch_only(enum ckpt_format f)
{
	return f == CKPT_TORCH || f == CKPT_LIGHTNING || f == CKPT_DEEPSPEED;
}

bool ckpt_is_plain(enum ckpt_format f)
{
	return f == CKPT_TORCH || f == CKPT_SAFETENSORS;
}

bool ckpt_is_source_of(const struct ckpt_kind *part, const struct ckpt_kind *whole)
{
	return part->format == CKPT_HF_SHARDS && whole->model;
}

bool ckpt_is_loose(const struct ckpt_kind *k)
{
	return ckpt_is_plain(k->format) && !k->has_step;
}

const char *ckpt_format_name(enum ckpt_format f)
{
	static const char *const name[] = {
		[CKPT_NONE] = "-",
		[CKPT_DCP] = "dcp",
		[CKPT_DCP_LOCAL] = "dcp-local",
		[CKPT_MEGATRON] = "megatron",
		[CKPT_SAFETENSORS] = "safetensors",
		[CKPT_HF_SHARDS] = "hf-shards",
		[CKPT_TRAINER] = "hf-trainer",
		[CKPT_DEEPSPEED] = "deepspeed",
		[CKPT_ORBAX] = "orbax",
		[CKPT_TORCH] = "torch",
		[CKPT_LIGHTNING] = "lightning",
		[CKPT_SNAPSHOT] = "torchsnapshot",
	};

	return name[f];
}

const char *ckpt_state_name(enum ckpt_state s)
{
	return s == CKPT_WRITING ? "writing" : s == CKPT_INCOMPLETE ? "incomplete" : "complete";
}

/* ---- recognition ------------------------------------------------------------------ */

/* step-7, checkpoint-7, iter_0000007, global_step7, epoch=1-step=7.ckpt */
static bool find_named_step(const char *name, uint64_t *step)
{
	static const char *const word[] = {"step", "checkpoint", "iter", "ckpt"};

	for (size_t i = 0; i < sizeof(word) / sizeof(word[0]); i++) {
		const char *at = strstr(name, word[i]);

		if (!at)
			continue;
		at += strlen(word[i]);
		at += *at == '-' || *at == '_' || *at == '=';
		if (number(&at, step))
			return true;
	}
	return false;
}

/* Those, 7, 7.orbax-checkpoint-tmp-123 */
static bool find_step(const char *name, uint64_t *step)
{
	const char *s = name;

	if (number(&s, step) && (!*s || starts(s, ".orbax-checkpoint-tmp")))
		return true;
	return find_named_step(name, step);
}

/* Not a number alone: that may be a rank. */
static bool has_other_steps(uint64_t step, const struct ckpt_name *v, size_t n)
{
	uint64_t other;

	for (size_t i = 0; i < n; i++)
		if ((v[i].dir || ckpt_is_one_file(v[i].name)) &&
		    find_named_step(v[i].name, &other) && other != step)
			return true;
	return false;
}

/* Files of several steps: step_100.pt, step_200.pt. Numbers without a gap may be those of ranks. */
static bool has_files_of_steps(uint64_t step, const struct ckpt_name *v, size_t n)
{
	uint64_t one, least = UINT64_MAX, most = 0;
	size_t files = 0;

	for (size_t i = 0; i < n; i++)
		if (!v[i].dir && ckpt_is_loose_file(v[i].name) &&
		    find_named_step(v[i].name, &one) && one != step) {
			least = one < least ? one : least;
			most = one > most ? one : most;
			files++;
		}
	return files && most - least >= files;
}

struct seen {
	bool metadata, local, distcp, common, shards, safetensors, torch, deepspeed, trainer, orbax;
	bool snapshot, model;
	bool dirs, trainer_dirs;
};

static void look_at(const char *name, struct seen *s)
{
	uint64_t x[3];

	s->metadata |= ckpt_is_metadata(name, true) || !strcmp(name, ".metadata.tmp");
	s->local |= ckpt_is_metadata(name, false) || matches(name, "__%.metadata.tmp", x);
	s->distcp |= matches(name, "__%_%.distcp", x);
	s->common |= !strcmp(name, "common.pt");
	s->shards |= matches(name, "shard-%-model-%-of-%.safetensors", x);
	s->safetensors |= ckpt_is_safetensors(name) || ckpt_is_index(name);
	s->deepspeed |= ckpt_is_model_states(name) || ends(name, "_optim_states.pt");
	s->trainer |= !strcmp(name, "trainer_state.json");
	s->orbax |= !strcmp(name, "_CHECKPOINT_METADATA") || !strcmp(name, "manifest.ocdbt") ||
		    !strcmp(name, "commit_success.txt");
	s->snapshot |= !strcmp(name, CKPT_SNAPSHOT_NAME);
	s->model |= ckpt_is_model_file(name);
	s->torch |= ckpt_is_torch(name) && !ends(name, ".ckpt") && strcmp(name, "common.pt");
}

static enum ckpt_format format_of(const char *dir, const struct seen *s)
{
	if (s->distcp || s->metadata || s->local) {
		if (s->local && !s->metadata)
			return CKPT_DCP_LOCAL;
		if (!s->distcp && !s->metadata)
			return CKPT_NONE;
		return s->common || starts(dir, "iter_") ? CKPT_MEGATRON : CKPT_DCP;
	}
	if (s->snapshot)
		return CKPT_SNAPSHOT;
	if (s->orbax || strstr(dir, ".orbax-checkpoint-tmp"))
		return CKPT_ORBAX;
	if (s->deepspeed)
		return CKPT_DEEPSPEED;
	/* Trainer.save_state() writes trainer_state.json into the directory of the run, too */
	if ((s->trainer && !s->trainer_dirs) ||
	    ((starts(dir, "checkpoint-") || starts(dir, "tmp-checkpoint-")) &&
	     (s->safetensors || s->torch)))
		return CKPT_TRAINER;
	if (s->shards)
		return CKPT_HF_SHARDS;
	/* Megatron writes common.pt first and the shards much later: until then it is alone */
	if (s->common && (starts(dir, "iter_") || !(s->safetensors || s->torch || s->dirs)))
		return CKPT_MEGATRON;
	return s->safetensors ? CKPT_SAFETENSORS : s->torch || s->common ? CKPT_TORCH : CKPT_NONE;
}

void ckpt_recognize(const char *dir, const struct ckpt_name *v, size_t n, struct ckpt_kind *out)
{
	struct seen s = {0};
	uint64_t step;

	for (size_t i = 0; i < n; i++) {
		s.dirs |= v[i].dir;
		s.trainer_dirs |= v[i].dir && matches(v[i].name, "checkpoint-%", &step);
		look_at(v[i].name, &s);
	}
	*out = (struct ckpt_kind){.format = format_of(dir, &s)};
	if (out->format == CKPT_NONE)
		return;
	out->has_step = find_step(dir, &out->step);
	if (ckpt_is_plain(out->format) && out->has_step &&
	    (has_other_steps(out->step, v, n) ||
	     (number_is(dir, &step) && has_files_of_steps(out->step, v, n)))) {
		out->has_step = false;
		out->step = 0;
	}
	out->model = s.model;
	out->temporary = strstr(dir, ".orbax-checkpoint-tmp") || starts(dir, "tmp-checkpoint-") ||
			 starts(dir, "tmp_") || starts(dir, CKPT_REMOVED_PREFIX) ||
			 starts(dir, CKPT_FETCH_PREFIX);
}

void ckpt_recognize_file(const char *name, struct ckpt_kind *out)
{
	*out = (struct ckpt_kind){
		.format = ckpt_is_safetensors(name) ? CKPT_SAFETENSORS
			  : ckpt_is_one_file(name)  ? CKPT_LIGHTNING
			  : ckpt_is_torch(name)	    ? CKPT_TORCH
						    : CKPT_NONE,
	};
	if (out->format != CKPT_NONE)
		out->has_step = find_step(name, &out->step);
}

/* ---- ranks ------------------------------------------------------------------------ */

/* The rank in a file's name, by format; false: none. */
static bool rank_of(enum ckpt_format f, const char *name, uint64_t *rank)
{
	uint64_t x[3];
	bool hit = false;

	if (f == CKPT_DCP_LOCAL)
		hit = matches(name, "__%.metadata", x);
	else if (ckpt_is_dcp(f))
		hit = matches(name, "__%_%.distcp", x);
	else if (f == CKPT_HF_SHARDS)
		hit = matches(name, "shard-%-model-%-of-%.safetensors", x);
	else if (f == CKPT_TRAINER)
		hit = matches(name, "rng_state_%.pth", x);
	*rank = hit ? x[0] : 0;
	return hit;
}

/* Counts distinct ranks: names are sorted as text, so equal ranks may not be adjacent. */
struct ranks {
	uint64_t *v;
	size_t n, cap;
};

static void ranks_add(struct ranks *r, uint64_t rank)
{
	if (r->n && r->v[r->n - 1] == rank)
		return;
	if (r->n == r->cap) {
		size_t cap = r->cap ? r->cap * 2 : 64;
		uint64_t *v = reallocarray(r->v, cap, sizeof(*v));

		if (!v)
			return; /* no memory: the count is too low, no worse */
		r->v = v;
		r->cap = cap;
	}
	r->v[r->n++] = rank;
}

static int by_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint32_t ranks_end(struct ranks *r)
{
	uint32_t n = 0;

	if (r->n)
		qsort(r->v, r->n, sizeof(*r->v), by_u64);
	for (size_t i = 0; i < r->n; i++)
		n += !i || r->v[i] != r->v[i - 1];
	free(r->v);
	return n;
}

static bool is_whole(const struct ckpt_name *v, size_t n, const struct fmt_file *f)
{
	const struct ckpt_name *have = find(v, n, f->name);

	return have && !have->dir && !have->fault && have->size >= f->need;
}

/* DeepSpeed with ZeRO: optimizer states for each data-parallel rank of each model-parallel one, and
 * with stage 3 also model states. */
static void count_deepspeed(const struct ckpt_kind *k, const struct ckpt_name *v, size_t n,
			    struct ckpt_verdict *out)
{
	static const char *const name[] = {
		"zero_pp_rank_%_mp_rank_%_optim_states.pt",
		"bf16_zero_pp_rank_%_mp_rank_%_optim_states.pt",
		"fp16_zero_pp_rank_%_mp_rank_%_optim_states.pt",
		"zero_pp_rank_%_mp_rank_%_model_states.pt",
		"mp_rank_%_model_states.pt",
	};
	struct ranks optim = {0}, model = {0}, mp = {0};
	uint32_t o, m;
	uint64_t x[2], across;

	for (size_t i = 0; i < n; i++) {
		size_t j = 0;

		while (j < 5 && !matches(v[i].name, name[j], x))
			j++;
		if (j == 5)
			continue;
		ranks_add(&mp, x[j < 4]);
		if (j < 4 && !v[i].fault)
			ranks_add(j < 3 ? &optim : &model, x[1] << 32 | (uint32_t)x[0]);
	}
	o = ranks_end(&optim);
	m = ranks_end(&model);
	across = (uint64_t)k->ranks * ranks_end(&mp);
	out->ranks = !k->ranks || !m ? (o > m ? o : m) : o < m ? o : m;
	out->ranks_expected = across && across <= UINT32_MAX ? (uint32_t)across : out->ranks;
}

static void count_ranks(enum ckpt_format f, const struct ckpt_name *v, size_t n,
			const struct fmt_set *set, struct ckpt_verdict *out)
{
	struct ranks here = {0}, want = {0};
	uint64_t r;
	bool by_set = ckpt_is_dcp(f) && f != CKPT_DCP_LOCAL && set;

	for (size_t i = 0; by_set && i < set->n_files; i++) {
		if (!rank_of(f, set->file[i].name, &r))
			continue;
		ranks_add(&want, r);
		if (is_whole(v, n, &set->file[i]))
			ranks_add(&here, r);
	}
	for (size_t i = 0; !by_set && i < n; i++)
		if (rank_of(f, v[i].name, &r) && !v[i].fault)
			ranks_add(&here, r);
	out->ranks = ranks_end(&here);
	out->ranks_expected = ranks_end(&want);
	if (!out->ranks_expected)
		out->ranks_expected = out->ranks;
}

/* ---- the verdict ------------------------------------------------------------------ */

__attribute__((format(printf, 2, 3))) static void lacks(struct ckpt_verdict *out, const char *fmt,
							...)
{
	va_list ap;

	if (out->state != CKPT_COMPLETE)
		return; /* only the first finding is kept */
	out->state = CKPT_INCOMPLETE;
	va_start(ap, fmt);
	vsnprintf(out->why, sizeof(out->why), fmt, ap);
	va_end(ap);
}

static void need_files(const struct ckpt_name *v, size_t n, const struct fmt_set *set,
		       struct ckpt_verdict *out)
{
	size_t missing = 0;
	const char *first = NULL;

	for (size_t i = 0; i < set->n_files; i++) {
		const struct fmt_file *f = &set->file[i];
		const struct ckpt_name *have = find(v, n, f->name);

		if (!have || have->dir) {
			missing++;
			first = first ? first : f->name;
		} else if (have->size < f->need) {
			lacks(out, "%.100s has %llu of %llu bytes", f->name,
			      (unsigned long long)have->size, (unsigned long long)f->need);
		}
	}
	if (missing > 1)
		lacks(out, "%.100s and %zu more are missing", first, missing - 1);
	else if (missing)
		lacks(out, "%.100s is missing", first);
}

static void need_cover(const struct fmt_set *set, struct ckpt_verdict *out)
{
	struct fmt_error e;

	for (size_t i = 0; i < set->n_tensors && out->state == CKPT_COMPLETE; i++)
		if (fmt_set_cover(&set->tensor[i], NULL, &e) == -EBADMSG)
			lacks(out, "%s", e.text);
}

static void need_sound(const struct ckpt_name *v, size_t n, struct ckpt_verdict *out)
{
	for (size_t i = 0; i < n; i++)
		if (v[i].fault)
			lacks(out, "%.60s: %s", v[i].name, v[i].fault);
}

static void judge_dcp(const struct ckpt_kind *k, const struct ckpt_name *v, size_t n,
		      const struct fmt_set *set, struct ckpt_verdict *out)
{
	if (k->format != CKPT_DCP_LOCAL && !find(v, n, ".metadata"))
		lacks(out, ".metadata is missing");
	if (set)
		need_files(v, n, set, out);
	if (k->format == CKPT_MEGATRON && find(v, n, "common.pt") && !find(v, n, "metadata.json"))
		lacks(out, "metadata.json is missing");
	if (k->format == CKPT_MEGATRON && find(v, n, "metadata.json") && !find(v, n, "common.pt"))
		lacks(out, "common.pt is missing");
	if (!set)
		return;
	for (size_t i = 0; i < set->n_tensors; i++)
		for (size_t j = 0; j < set->tensor[i].n_pieces; j++)
			if (set->tensor[i].piece[j].file == FMT_NO_FILE)
				lacks(out, "%.80s: %s", set->tensor[i].name,
				      set->tensor[i].piece[j].refusal);
	need_cover(set, out);
}

/* Overwritten in place: the marker that commits the shards is still that of the previous
 * version. */
static void need_committed(const struct ckpt_name *v, size_t n, struct ckpt_verdict *out)
{
	char buf[64];

	for (size_t i = 0; i < n && out->state == CKPT_COMPLETE; i++) {
		const char *by;

		for (int w = 0; v[i].over.mtime.tv_sec && w < 2; w++) {
			const struct ckpt_name *c;

			by = ckpt_commit_of(v[i].name, w, buf);
			c = by ? find(v, n, by) : NULL;
			if (c && ckpt_over_is(&v[i].over, c->mtime, c->ino))
				lacks(out, "%.80s was overwritten later than %.60s", v[i].name, by);
		}
	}
}

/* model-00001-of-00003.safetensors without an index: readers cannot tell which tensor is in which
 * file. */
static void need_numbered(const struct ckpt_name *v, size_t n, struct ckpt_verdict *out)
{
	uint64_t x[2], of = 0, have = 0;

	for (size_t i = 0; i < n; i++)
		if (matches(v[i].name, "model-%-of-%.safetensors", x)) {
			of = x[1];
			have++;
		}
	if (of > have)
		lacks(out, "%llu of %llu model-*.safetensors files exist", (unsigned long long)have,
		      (unsigned long long)of);
	else if (of > 1)
		lacks(out, "model.safetensors.index.json is missing");
}

static void judge_safetensors(const struct ckpt_name *v, size_t n, const struct fmt_set *set,
			      const struct safetensors_index *index, struct ckpt_verdict *out)
{
	if (!index)
		need_numbered(v, n, out);
	if (!set)
		return;
	need_files(v, n, set, out);
	for (size_t i = 0; index && i < index->n && out->state == CKPT_COMPLETE; i++) {
		const struct fmt_tensor *t =
			fmt_set_find(set, index->v[i].name, strlen(index->v[i].name));

		if (!t)
			lacks(out, "%.100s is in the index but in no file", index->v[i].name);
	}
	need_cover(set, out);
}

static void judge_deepspeed(const struct ckpt_name *v, size_t n, struct ckpt_verdict *out)
{
	for (size_t i = 0; i < n; i++)
		if (ckpt_is_model_states(v[i].name))
			return;
	lacks(out, "no *_model_states.pt exists");
}

/* Its metadata is written last, after all ranks. */
static void judge_snapshot(const struct ckpt_name *v, size_t n, const struct fmt_set *set,
			   struct ckpt_verdict *out)
{
	if (!find(v, n, CKPT_SNAPSHOT_NAME))
		lacks(out, CKPT_SNAPSHOT_NAME " is missing");
	if (!set)
		return;
	need_files(v, n, set, out);
	need_cover(set, out);
}

static void judge_by_format(const struct ckpt_kind *k, const struct ckpt_name *v, size_t n,
			    const struct fmt_set *set, const struct safetensors_index *index,
			    struct ckpt_verdict *out)
{
	switch (k->format) {
	case CKPT_DCP:
	case CKPT_DCP_LOCAL:
	case CKPT_MEGATRON: judge_dcp(k, v, n, set, out); break;
	case CKPT_SAFETENSORS:
	case CKPT_HF_SHARDS: judge_safetensors(v, n, set, index, out); break;
	case CKPT_TRAINER:
		if (!find(v, n, "trainer_state.json"))
			lacks(out, "trainer_state.json is missing");
		judge_safetensors(v, n, set, index, out);
		break;
	case CKPT_DEEPSPEED: judge_deepspeed(v, n, out); break;
	case CKPT_SNAPSHOT: judge_snapshot(v, n, set, out); break;
	case CKPT_NONE:
	case CKPT_ORBAX:
	case CKPT_TORCH:
	case CKPT_LIGHTNING: break;
	}
}

/* In DCP's shards for Hugging Face, a tensor's shape is that which its shards cover: so full
 * coverage does not exclude that shards are still missing at the end. */
static bool has_marker(enum ckpt_format f, const struct safetensors_index *index)
{
	return f != CKPT_DEEPSPEED && (f != CKPT_HF_SHARDS || index);
}

static bool is_temporary(const char *name)
{
	return ends(name, ".metadata.tmp") || strstr(name, ".orbax-checkpoint-tmp");
}

void ckpt_judge(const struct ckpt_kind *k, const struct ckpt_name *v, size_t n,
		const struct fmt_set *set, const struct safetensors_index *index, double quiet_s,
		struct ckpt_verdict *out)
{
	*out = (struct ckpt_verdict){.state = CKPT_COMPLETE};
	if (k->format == CKPT_DEEPSPEED)
		count_deepspeed(k, v, n, out);
	else if (k->format == CKPT_SNAPSHOT)
		out->ranks = out->ranks_expected = k->ranks;
	else
		count_ranks(k->format, v, n, set, out);
	for (size_t i = 0; i < n; i++) {
		if (!v[i].open)
			continue;
		out->state = CKPT_WRITING;
		snprintf(out->why, sizeof(out->why), "%.150s is open", v[i].name);
		return;
	}
	need_committed(v, n, out);
	need_sound(v, n, out);
	judge_by_format(k, v, n, set, index, out);
	if (k->temporary)
		lacks(out, "the directory has a temporary name");
	for (size_t i = 0; i < n; i++)
		if (is_temporary(v[i].name))
			lacks(out, "%.100s still exists", v[i].name);
	if (out->ranks < out->ranks_expected)
		lacks(out, "%u of %u ranks", out->ranks, out->ranks_expected);
	/* without a marker, only time tells */
	if (!has_marker(k->format, index) && quiet_s < CKPT_QUIET_S)
		lacks(out, "it changed %.0f s ago", quiet_s);
	if (out->state == CKPT_INCOMPLETE && quiet_s < CKPT_QUIET_S)
		out->state = CKPT_WRITING;
}

bool ckpt_has_rank_set(enum ckpt_format f)
{
	return f == CKPT_DEEPSPEED || f == CKPT_TRAINER || f == CKPT_HF_SHARDS;
}

void ckpt_expect_ranks(const struct ckpt_kind *k, uint32_t ranks, double quiet_s,
		       struct ckpt_verdict *out)
{
	if ((!ckpt_has_rank_set(k->format) && k->format != CKPT_DCP_LOCAL) ||
	    ranks <= out->ranks_expected)
		return;
	/* a checkpoint of fewer ranks that covers every tensor is complete, too */
	if (k->format == CKPT_DCP_LOCAL) {
		if (out->state != CKPT_COMPLETE)
			out->ranks_expected = ranks;
		return;
	}
	lacks(out, "%u of %u ranks, as many as the previous checkpoint has", out->ranks, ranks);
	if (out->state == CKPT_INCOMPLETE && quiet_s < CKPT_QUIET_S)
		out->state = CKPT_WRITING;
	out->ranks_expected = ranks;
}
