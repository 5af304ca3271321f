# SPDX-License-Identifier: MIT
#
# The rows of tools/bench/run on stdin and its samples in `raw`: prints the table as
# Markdown, and writes the same and all samples to the file `json`.

function sort_samples(key, v,    i, k, n, t) {
	n = count[key]
	for (i = 1; i <= n; i++)
		v[i] = sample[key, i]
	for (i = 2; i <= n; i++) {
		t = v[i]
		for (k = i - 1; k > 0 && v[k] > t; k--)
			v[k + 1] = v[k]
		v[k + 1] = t
	}
	return n
}

function median(key,    v, n) {
	n = sort_samples(key, v)
	return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}

function extreme(key, last,    v, n) {
	n = sort_samples(key, v)
	return last ? v[n] : v[1]
}

function quoted(s) {
	gsub(/["\\]/, "\\\\&", s)
	return "\"" s "\""
}

# smallest and largest ratio of one round: how far the weather moved it
function spread(a, b,    i, n, r, lo, hi) {
	n = count[a] < count[b] ? count[a] : count[b]
	for (i = 1; i <= n; i++) {
		r = sample[a, i] / sample[b, i]
		if (i == 1 || r < lo) lo = r
		if (i == 1 || r > hi) hi = r
	}
	return sprintf("%.2f–%.2f", lo, hi)
}

function figure(key) {
	return sprintf("%.4g %s", median(key), unit[key])
}

BEGIN {
	while ((getline line < raw) > 0) {
		split(line, f, "\t")
		key = f[1] "/" f[2] "/" f[3]
		if (!(key in count))
			order[++keys] = key
		unit[key] = f[4]
		sample[key, ++count[key]] = f[5]
	}
	while ((getline line < machine) > 0) {
		print "- " line
		about = about (about ? ", " : "") quoted(line)
	}
	print "\n| # | measure | target | measured | rounds, min–max | figures | |"
	print "|---|---|---|---|---|---|---|"
	printf "{\"machine\":[%s],\n\"rows\":[", about >json
	FS = "|"
}

{
	a = $3
	b = $4
	if (!(a in count) || (b != "-" && !(b in count)))
		next
	if (b == "-") {
		# a limit on a bad thing holds for the worst of it, not for its median
		value = $1 ~ /^(1[13]|17[efg])/ ? extreme(a, 1) : median(a)
		range = sprintf("%.4g–%.4g", extreme(a, 0), extreme(a, 1))
		what = sprintf("median %s", figure(a))
	} else {
		value = median(a) / median(b)
		range = spread(a, b)
		what = figure(a) " / " figure(b)
	}
	verdict = ($5 == ">=" ? value >= $6 : value <= $6) ? "pass" : "SHORT"
	printf "| %s | %s | %s %s | **%.3g** | %s | %s | %s |\n", $1, $2, \
		$5 == ">=" ? "≥" : "≤", $6, value, range, what, verdict
	printf "%s\n{\"row\":%s,\"measure\":%s,\"compare\":%s,\"target\":%s,\"measured\":%.6g,\"pass\":%s}", \
		(rows++ ? "," : ""), quoted($1), quoted($2), quoted($5), $6, value, \
		verdict == "pass" ? "true" : "false" >json
}

END {
	print "\nEvery figure of the runs:\n"
	print "| run | place | figure | median | min | max | n |"
	print "|---|---|---|---|---|---|---|"
	printf "],\n\"figures\":[" >json
	for (i = 1; i <= keys; i++) {
		key = order[i]
		split(key, f, "/")
		metric = substr(key, length(f[1] f[2]) + 3)
		printf "| %s | %s | %s | %.4g %s | %.4g | %.4g | %d |\n", f[1], f[2], metric, \
			median(key), unit[key], extreme(key, 0), extreme(key, 1), count[key]
		printf "%s\n{\"run\":%s,\"place\":%s,\"figure\":%s,\"unit\":%s,\"median\":%.6g,\"samples\":[", \
			(i > 1 ? "," : ""), quoted(f[1]), quoted(f[2]), quoted(metric), \
			quoted(unit[key]), median(key) >json
		for (k = 1; k <= count[key]; k++)
			printf "%s%s", (k > 1 ? "," : ""), sample[key, k] >json
		printf "]}" >json
	}
	printf "]}\n" >json
}
