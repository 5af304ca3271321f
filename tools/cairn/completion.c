/* SPDX-License-Identifier: MIT
 *
 * cairn completion: scripts for bash, zsh and fish, made from the table of subcommands in main.c,
 * so that they know what the program knows.
 */
#include "commands.h"

#include <string.h>

#define WORD_MAX 64u

/* A word of a subcommand's `args`: an option, maybe with a value, or an operand. */
struct word {
	bool is_option;
	char name[WORD_MAX];
	char value[WORD_MAX]; /* of an option; "" = it takes none */
};

/* The next word of *at, which moves behind it. False: there is none. */
static bool next_word(const char **at, struct word *out)
{
	const char *s = *at + strspn(*at, " ");
	bool in_brackets = *s == '[';
	size_t n = strcspn(s += in_brackets, " ]");

	*out = (struct word){.is_option = *s == '-'};
	snprintf(out->name, sizeof(out->name), "%.*s", (int)n, s);
	s += n;
	if (in_brackets && *s == ' ') {
		n = strcspn(++s, "]");
		snprintf(out->value, sizeof(out->value), "%.*s", (int)n, s);
		s += n;
	}
	*at = s + (*s == ']');
	return out->name[0];
}

static bool is_choice(const char *text)
{
	return strchr(text, '|');
}

/* "a|b" as "a b" */
static void print_choice(const char *text)
{
	for (; *text; text++)
		putchar(*text == '|' ? ' ' : *text);
}

static void print_names(void)
{
	const struct command *c;

	for (size_t i = 0; (c = command_at(i)); i++)
		printf("%s%s", i ? " " : "", c->name);
}

/* Between single quotes, in each of the three shells. */
static void print_quoted(const char *text, bool colons)
{
	for (; *text; text++) {
		if (*text == '\'')
			fputs("'\\''", stdout);
		else if (*text == ':' && colons)
			fputs("\\:", stdout);
		else
			putchar(*text);
	}
}

/* Whether its operand is one of some words: then these, else it is a path, or there is none. */
static bool takes_words(const struct command *c)
{
	const char *at = c->args;
	struct word w;

	while (next_word(&at, &w))
		if (!w.is_option && (is_choice(w.name) || !strcmp(w.name, "SUBCOMMAND")))
			return true;
	return false;
}

static void print_operands(const struct command *c)
{
	const char *at = c->args;
	struct word w;

	while (next_word(&at, &w))
		if (!w.is_option && !strcmp(w.name, "SUBCOMMAND"))
			print_names();
		else if (!w.is_option && is_choice(w.name))
			print_choice(w.name);
}

/* ---- bash ------------------------------------------------------------------- */

static void bash_values(const struct command *c)
{
	const char *at = c->args;
	struct word w;

	while (next_word(&at, &w)) {
		if (!w.value[0])
			continue;
		printf("\t%s:%s) words='", c->name, w.name);
		if (is_choice(w.value))
			print_choice(w.value);
		fputs("' ;;\n", stdout);
	}
}

static void bash_options(const struct command *c)
{
	const char *at = c->args;
	struct word w;

	printf("\t%s:-*) words='--help", c->name);
	while (next_word(&at, &w))
		if (w.is_option)
			printf(" %s", w.name);
	printf("' ;;\n\t%s:*) words='", c->name);
	print_operands(c);
	printf("'%s ;;\n", c->args[0] ? " paths=1" : "");
}

static void print_bash(void)
{
	const struct command *c;

	fputs("# bash completion of cairn, printed by: cairn completion bash\n"
	      "_cairn()\n{\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} words='' paths=''\n"
	      "\tCOMPREPLY=()\n"
	      "\tif [ \"$COMP_CWORD\" = 1 ]; then\n"
	      "\t\twords='",
	      stdout);
	print_names();
	fputs("'\n\telse case ${COMP_WORDS[1]}:${COMP_WORDS[COMP_CWORD - 1]} in\n", stdout);
	for (size_t i = 0; (c = command_at(i)); i++)
		bash_values(c);
	fputs("\t*) case ${COMP_WORDS[1]}:$cur in\n", stdout);
	for (size_t i = 0; (c = command_at(i)); i++)
		bash_options(c);
	fputs("\tesac ;;\n\tesac\n\tfi\n"
	      "\tif [ -n \"$words\" ]; then\n"
	      "\t\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
	      "\telif [ -n \"$paths\" ]; then\n"
	      "\t\tcompopt -o filenames\n"
	      "\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
	      "\tfi\n"
	      "}\ncomplete -F _cairn cairn\n",
	      stdout);
}

/* ---- zsh --------------------------------------------------------------------- */

static void zsh_command(const struct command *c)
{
	const char *at = c->args;
	struct word w;

	printf("%s) _arguments --help", c->name);
	while (next_word(&at, &w)) {
		if (!w.is_option)
			continue;
		printf(" '%s", w.name);
		if (w.value[0] && w.name[1] == '-')
			putchar('=');
		if (w.value[0])
			fputs(":value:", stdout);
		if (is_choice(w.value)) {
			putchar('(');
			print_choice(w.value);
			putchar(')');
		}
		putchar('\'');
	}
	fputs(" '*:operand:", stdout);
	if (takes_words(c)) {
		putchar('(');
		print_operands(c);
		putchar(')');
	} else if (c->args[0]) {
		fputs("_files", stdout);
	}
	fputs("' ;;\n", stdout);
}

static void print_zsh(void)
{
	const struct command *c;

	fputs("#compdef cairn\n"
	      "# zsh completion of cairn, printed by: cairn completion zsh\n"
	      "local -a subcommands\n"
	      "subcommands=(\n",
	      stdout);
	for (size_t i = 0; (c = command_at(i)); i++) {
		printf("'%s:", c->name);
		print_quoted(c->what, true);
		fputs("'\n", stdout);
	}
	fputs(")\n"
	      "if (( CURRENT == 2 )); then\n"
	      "\t_describe -t commands subcommand subcommands\n"
	      "\treturn\n"
	      "fi\n"
	      "shift words\n"
	      "(( CURRENT-- ))\n"
	      "case $words[1] in\n",
	      stdout);
	for (size_t i = 0; (c = command_at(i)); i++)
		zsh_command(c);
	fputs("esac\n", stdout);
}

/* ---- fish -------------------------------------------------------------------- */

static void fish_command(const struct command *c)
{
	const char *at = c->args;
	struct word w;

	printf("complete -c cairn -f -n __fish_use_subcommand -a %s -d '", c->name);
	print_quoted(c->what, false);
	fputs("'\n", stdout);
	while (next_word(&at, &w)) {
		bool is_long = !strncmp(w.name, "--", 2);

		if (!w.is_option)
			continue;
		printf("complete -c cairn -n '__fish_seen_subcommand_from %s' -%c %s", c->name,
		       is_long ? 'l' : 's', w.name + (is_long ? 2 : 1));
		if (w.value[0])
			fputs(" -x", stdout);
		if (is_choice(w.value)) {
			fputs(" -a '", stdout);
			print_choice(w.value);
			putchar('\'');
		}
		putchar('\n');
	}
	if (takes_words(c)) {
		printf("complete -c cairn -f -n '__fish_seen_subcommand_from %s' -a '", c->name);
		print_operands(c);
		fputs("'\n", stdout);
	}
}

static void print_fish(void)
{
	const struct command *c;

	fputs("# fish completion of cairn, printed by: cairn completion fish\n", stdout);
	for (size_t i = 0; (c = command_at(i)); i++)
		fish_command(c);
}

/* ---- the subcommand ------------------------------------------------------------ */

int cmd_completion(int argc, char **argv)
{
	static const struct {
		const char *shell;
		void (*print)(void);
	} scripts[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};

	if (argc != 2)
		return complain_usage("completion", "name one shell");
	for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++)
		if (!strcmp(argv[1], scripts[i].shell)) {
			scripts[i].print();
			return CAIRN_OK;
		}
	return complain_usage("completion",
			      "%s: no script for this shell; there are bash, zsh, fish", argv[1]);
}
