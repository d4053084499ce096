#!/usr/bin/env bash
# Run scenarios and write one report of all, in Markdown, into the file that is named.
# SCENARIOS: files, or patterns; COMMAND: run or simulate; OUTPUT: folder of results.
# On GitHub, the report is the step's summary, too, and the status an output.
set -uo pipefail
shopt -s nullglob globstar
report=$1
status=0
: >"$report"
echo "<!-- nestsim -->" >>"$report" # what the comment is found again by
# shellcheck disable=SC2206 - patterns are to be read as the shell reads them
files=($SCENARIOS)
if [ ${#files[@]} -eq 0 ]; then
  echo "No file is called like this: $SCENARIOS" | tee -a "$report" >&2
  status=2
fi
for file in "${files[@]}"; do
  folder="$OUTPUT/$(basename "$file" .toml)"
  text=$(nestsim "$COMMAND" "$file" --markdown --quiet --force --output "$folder" 2>"$report.errors")
  code=$?
  {
    echo "$text"
    # What is wrong, as a block: it is not written for Markdown.
    if [ -s "$report.errors" ]; then printf '\n```text\n%s\n```\n' "$(cat "$report.errors")"; fi
    echo
  } >>"$report"
  cat "$report.errors" >&2
  if [ "$code" -gt "$status" ]; then status=$code; fi
done
rm -f "$report.errors"
cat "$report"
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then cat "$report" >>"$GITHUB_STEP_SUMMARY"; fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then
  echo "status=$status" >>"$GITHUB_OUTPUT"
  exit 0 # the last step of the action ends with it
fi
exit "$status"
