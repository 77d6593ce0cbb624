#!/bin/bash
# Apache Kafka 3.9 in ZooKeeper mode on three servers (Drive.java): too heavy for every change.
#
#   SERVER=zookeeper|lockkeeper   which server (lib.sh)
. "$(dirname "$0")/../lib.sh"
need javac default-jdk-headless
server_command
start_cluster kafka
jars "$COMPAT/kafka/jars.txt"
CLASSES=$COMPAT_WORK/kafka-classes
WORK=$COMPAT_WORK/kafka-brokers
rm -rf "$WORK"; mkdir -p "$CLASSES" "$WORK"
javac -nowarn -d "$CLASSES" -cp "$JARS/*" "$COMPAT/kafka/Drive.java" || die "the program does not compile"
java -Xmx128m -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=off -cp "$CLASSES:$JARS/*" \
  Drive "$PORTS" "$(free_port)" "$(free_port)" "$WORK"
