//go:build !race

package admission_test

const raceDetector = false
