#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# Completion in bash, zsh and fish: what each offers, that the table of subcommands has every option that the
# sources take, and that make install puts the scripts where the shells look.
. "$(dirname "$0")/../lib/lib.sh"
need_tool python3 make
cairn=$BUILD/cairn
for shell in bash zsh fish; do
	"$cairn" completion $shell >"$TMP/$shell" || die "cairn completion $shell"
done
for wrong in "" tcsh "bash zsh"; do
	# shellcheck disable=SC2086	# words
	"$cairn" completion $wrong >"$TMP/out" 2>&1 && die "cairn completion $wrong is taken"
	[ "$(wc -l <"$TMP/out")" = 1 ] || die "completion $wrong: $(cat "$TMP/out")"
done

# The table names the options of the getopt tables, or the letter of their short form, and no others.
python3 - "$LIB_TOP" "$cairn" <<'END' || die "the table of subcommands and the options taken differ"
import os, re, subprocess, sys
top, cairn = sys.argv[1:]
bad = 0
names = re.findall(r"^  (\w+) ", subprocess.run([cairn, "help"], capture_output=True, text=True, check=True).stdout, re.M)
assert len(names) > 10, names
for name in names:
    paths = [os.path.join(top, "tools/cairn", folder, name + ".c") for folder in ("", name)]
    text = "".join(open(p, encoding="utf-8").read() for p in paths if os.path.exists(p))
    usage = subprocess.run([cairn, "help", name], capture_output=True, text=True, check=True).stdout
    usage = re.match(r"usage: .*(\n {13}.*)*", usage)[0]
    listed = set(re.findall(r"[\[ ](--?[\w-]+)", usage))
    longs = dict(re.findall(r'\{"([\w-]+)", \w+_argument, NULL, \'(\w)\'\}', text))
    if name not in ("completion", "staging", "version", "help"):
        longs["timeout"] = "t" # watch.c takes it
    shorts = re.search(r'getopt_long\(argc, argv, "([^"]*)"', text)
    shorts = set(shorts[1].replace(":", "")) if shorts else set()
    for option, letter in longs.items():
        if "--" + option not in listed and "-" + letter not in listed:
            print(f"{name}: --{option} is taken and not listed")
            bad = 1
    for option in listed:
        known = option[2:] in longs if option.startswith("--") else option[1:] in shorts
        if not known:
            print(f"{name}: {option} is listed and not taken")
            bad = 1
sys.exit(bad)
END

# bash: COMPREPLY for a line whose last word is being typed.
cat >"$TMP/ask" <<'END'
compopt() { :; }
. "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_cairn
# the order of files is the directory's
readarray -t COMPREPLY < <(printf '%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort)
printf '%s\n' "${COMPREPLY[*]}"
END
offers()	# EXPECTED word...
{
	local want=$1 got
	shift
	got=$(cd "$TMP/some" && bash "$TMP/ask" "$TMP/bash" "$@") || die "bash: $*"
	[ "$got" = "$want" ] || die "bash: '$*' offers '$got', not '$want'"
}
mkdir "$TMP/some" && touch "$TMP/some/step 1" "$TMP/some/stop"
offers "status" cairn stat
offers "--keep-every --keep-last" cairn rm --keep
offers "dcp" cairn export --format d
offers "dcp safetensors torch" cairn export --format ""
offers "" cairn wait --timeout ""
offers "step 1 stop" cairn ls st
offers "zsh" cairn completion z
offers "verify version" cairn help ver
offers "" cairn version ""

if command -v fish >/dev/null; then
	asks() { HOME=$TMP XDG_CONFIG_HOME=$TMP fish --no-config -c "source $TMP/fish; complete -C '$1'" | cut -f1 | sort | tr '\n' ' '; }
	for pair in "cairn stat:status " "cairn rm --keep:--keep-every --keep-last " "cairn export --format d:dcp " \
		"cairn help ver:verify version "; do
		[ "$(asks "${pair%%:*}")" = "${pair#*:}" ] || die "fish: '${pair%%:*}' offers '$(asks "${pair%%:*}")'"
	done
else
	note "no fish: its script was not tried"
fi

if command -v zsh >/dev/null; then
	zsh -n "$TMP/zsh" || die "zsh -n"
	mkdir "$TMP/zfunc" && cp "$TMP/zsh" "$TMP/zfunc/_cairn"
	# An interactive zsh on a terminal of its own: what it completes appears behind what is typed.
	cat >"$TMP/type.zsh" <<-'END'
		zmodload zsh/zpty
		typed()	# LINE PATTERN
		{
			zpty z "TERM=dumb PS1=ready: zsh -f -i"
			zpty -w z "fpath=($ZFUNC \$fpath); autoload -U compinit; compinit -u -D; unsetopt prompt_cr; echo set\"\"up"
			zpty -r z said '*setup*' || return 1
			zpty -w -n z "$1"$'\t'
			zpty -r z said "*$2*" || return 1
			zpty -d z
		}
		typed 'cairn export --format d' '--format dcp' && typed 'cairn rm --keep-l' '--keep-last' &&
			typed 'cairn stat' 'status'
	END
	ZFUNC=$TMP/zfunc HOME=$TMP within 20 zsh -f "$TMP/type.zsh" >"$TMP/said" 2>&1 || die "zsh: $(cat "$TMP/said")"
else
	note "no zsh: its script was not tried"
fi

[ ! -e "$BUILD/sanitizer" ] || exit 0
make -s -C "$LIB_TOP" -o all BUILD="$BUILD" DESTDIR="$TMP/root" PREFIX=/usr install >"$TMP/said" || die "make install"
for pair in bash:bash-completion/completions/cairn zsh:zsh/site-functions/_cairn fish:fish/vendor_completions.d/cairn.fish; do
	cmp "$TMP/${pair%%:*}" "$TMP/root/usr/share/${pair#*:}" || die "${pair%%:*}'s is not installed"
done
# What it says is what there is.
(cd "$TMP/root" && find . ! -type d | sed 's/^\.//' | sort) >"$TMP/there"
sed -n 's/^  //p' "$TMP/said" | sed "s|^$TMP/root||" | sort | diff - "$TMP/there" || die "make install lists (<) what is not installed (>)"
