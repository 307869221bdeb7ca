#!/bin/sh
# Succeeds if the tests of the order between streams fail with the library that ignores it, and that of overlaps with memory that is
# handed out twice.
cd "$(dirname "$0")/.." || exit 2
passed=0
failed=0
for name in test_order test_overlap; do
    said=$(LD_LIBRARY_PATH=planted "tests/$name" 2>&1)
    code=$?
    echo "$said" | tail -n 4
    if [ $code -ne 0 ] && echo "$said" | grep -q '[1-9][0-9]* words reused too early'; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$name did not find the planted defect"
    fi
done
said=$(tests/test_overlap planted 2>&1)
code=$?
echo "$said" | tail -n 4
# Sixteen threads of 300 rounds hand out memory of a live block every 30 rounds.
if [ $code -ne 0 ] && echo "$said" | grep -q 'overlap: 160 live blocks overlap'; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo "test_overlap did not find the planted overlaps"
fi
echo "planted_order: $passed passed, $failed failed"
[ $failed -eq 0 ]
