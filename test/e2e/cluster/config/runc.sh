#!/bin/sh
# CRI-O has no options for hosts that do not allow to lower the score, or have no cgroups of a controller that the
# kernel has.
for word; do
	[ "$former" != --bundle ] || sed -i -z -e 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj": 0/' \
		-e 's/"hugepageLimits": *\[[^]]*\]/"hugepageLimits": []/' "$word/config.json"
	former=$word
done
exec {{.}} "$@"
