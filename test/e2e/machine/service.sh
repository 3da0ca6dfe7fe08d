# Runs a service. Go replaces the words in capital letters. The file NAME has the pid while the program runs, NAME.sh is
# there until this script ends, and NAME.stop keeps it from starting the program again.
exec >>LOG 2>&1
cd /run/services
trap 'rm -f NAME NAME.sh' EXIT
export ENVIRONMENT
while :; do
	echo "--- NAME starts: $(date --utc +%FT%T.%NZ)"
	COMMAND &
	echo $! >.NAME && mv .NAME NAME
	wait $! || true
	rm -f NAME
	[[ ! -e NAME.stop ]] && RESTART || exit
	sleep 1
	[[ ! -e NAME.stop ]] || exit
done
