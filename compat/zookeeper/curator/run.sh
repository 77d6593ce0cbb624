#!/bin/bash
# Curator 5.9's recipes, each by a program of ours (Recipes.java), in quiet and in trouble.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
#   CURATOR_SERVERS=1,3           how many servers, one run each
#   CURATOR_ONLY=InterProcess     only the recipes with this in their name
. "$(dirname "$0")/../lib.sh"
jars; need javac default-jdk-headless
server_command
OUT=$COMPAT_WORK/curator-classes
mkdir -p "$OUT"
javac -nowarn -d "$OUT" -cp "$JARS/*" "$COMPAT"/curator/*.java || die "the program does not compile"
find "$COMPAT_WORK" -maxdepth 1 -name 'curator-[0-9]*' -exec rm -rf {} +
java -Xmx512m -cp "$OUT:$JARS/*" -Dorg.slf4j.simpleLogger.defaultLogLevel=off Main "${CURATOR_SERVERS:-1,3}" "${CURATOR_ONLY:-}"
code=$?
[ $code = 0 ] && find "$COMPAT_WORK" -maxdepth 1 -name 'curator-[0-9]*' -exec rm -rf {} +
exit $code
