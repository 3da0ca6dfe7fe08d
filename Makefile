# `make help` lists the targets. Each is one command, so a target that is more than that lives in scripts/.
SHELL := /bin/bash
export VERSION REGISTRY

.PHONY: help build demo test test-race bench fuzz differential crash explore mutants lint bench-scale cluster cluster-down e2e soak conformance images check-deploy check-release release push licences vulncheck clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

build: ## the programs, in bin/
	@scripts/build

demo: ## see a pod keep its address, on the real bridge and portmap plugins (under a minute; FLAGS=-update writes the picture of README)
	@scripts/demo $(FLAGS)

test: ## everything that needs no cluster (6 minutes on 2 cores)
	@scripts/test

test-race: ## the unit tests under the race detector (needs a C compiler)
	@scripts/test-race

bench: ## calls, slow disks, an idle agent and its memory, against upstream host-local (RUN=<regexp>: calls, parallel, storm, others, idle, memory; ROUNDS, AGAINST=<program>)
	@scripts/bench

bench-scale: ## the memory and requests of two managers and the time of admissions, beside simulated nodes (NODES=50, RESERVATIONS=500)
	@scripts/simulated

fuzz: ## every fuzz target, a minute each (FUZZTIME=10m for longer)
	@FUZZTIME=$${FUZZTIME:-1m} scripts/fuzz

differential: ## the same calls to the plugin and to upstream's host-local, the long form (HOURS=1, SEEDS=<of a failure>)
	@HOURS=$${HOURS:-1} TIMEOUT=0 scripts/test-go -v ./test/differential

crash: ## kills, power cuts, full disks, damage and migration, the long form (RUN=<regexp>)
	@LONG=1 TIMEOUT=80m scripts/test-go -v -run '$(RUN)' ./test/crash | grep --line-buffered -v -e '^=== ' -e '--- PASS'; exit $${PIPESTATUS[0]}

mutants: ## changes of one expression, and which of them no test of the package notices, with gremlins (FLAGS=./pkg/store)
	@scripts/mutants $(FLAGS)

explore: ## every state of small models, the long form: a table, and a counter-example for each broken invariant (RUN=<regexp>)
	@scripts/explore

lint: ## gofmt, vet, staticcheck, and the rules of CONTRIBUTING.md that a program can check
	@scripts/lint

cluster: ## a real Kubernetes cluster on this machine (NODES, CNI, KUBERNETES, CONTAINERD, DUALSTACK)
	@scripts/cluster up

cluster-down: ## and away with it
	@scripts/cluster down

e2e: ## the tests in that cluster (RUN=<regexp>; FLAGS=-json, or another one of go test)
	@scripts/e2e $(FLAGS)

soak: ## replaced pods and accidents for hours in that cluster; fails if a resource grows without bound (HOURS=24, SEED)
	@scripts/soak

conformance: ## test suites of other projects with host-local and with leasehold: one table (PARTS="plugins kubernetes cri podman")
	@scripts/conformance $(PARTS)

images: ## the container images of this commit as archives, and the manifests that use them, in dist/dev (TAG, VERSION, GOARCH)
	@scripts/release images

check-deploy: ## the manifests of daemonset/, proven on a real API server
	@scripts/check-deploy

check-release: ## a release, built twice from two directories and compared
	@go -C scripts/tools test -timeout 60m -count=1 -run '^TestRelease$$' ./release

release: ## binaries, images, manifests, checksums and a bill of materials, in dist/ (VERSION=v0.1.0, REGISTRY=registry.example.org/leasehold)
	@scripts/release build

push: ## the images of dist/, to a registry (REGISTRY)
	@scripts/release push

licences: ## the licences of what the programs link; fails if one is not allowed
	@scripts/release licences

vulncheck: ## known vulnerabilities in what the programs call (needs vuln.go.dev, or VULNDB=)
	@scripts/vulncheck

clean: ## remove what was built
	rm -rf bin dist .cache
