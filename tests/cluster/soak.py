"""Three replicas under load with a fault every five seconds, by hand: scripts/soak cluster

Fails if an event is lost, counted twice, or answered otherwise than by one process, or if a
termination does not hold. Prints the longest pause that a broker saw with each kind of fault.
"""

import collections
import random
import sys
import tempfile
import time
from pathlib import Path

from conftest import peer
from load import Load, answers_of_one_process, event
from peer import DEADLINE_SECS, detection_pb
from replicas import Cluster
from servers import Redis, Switch, wait_for
from unstuck.v1.verdict_pb2 import ACTION_TERMINATE

FAULT_SECS = 5
# The longest wait that the brokers of the clients allow.
SETTINGS = {"UNSTUCK__CLUSTER__WAIT_MS": "250"}
BROKERS = 6


class Faults:
    def __init__(self, cluster, redis, ways, load, seed):
        self.cluster, self.redis, self.ways, self.load = cluster, redis, ways, load
        self.random = random.Random(seed)
        self.ended = {}

    def replica(self):
        return self.random.choice(self.cluster.replicas)

    def kill_a_replica(self):
        replica = self.replica()
        replica.kill()
        replica.start()

    def stop_a_replica(self):
        replica = self.replica()
        assert replica.terminate() == 0, replica.log.read_text()[-2000:]
        replica.start()

    def freeze_a_replica(self):
        replica = self.replica()
        replica.freeze()
        time.sleep(self.random.uniform(0.2, 2))
        replica.thaw()

    def freeze_redis(self):
        self.load.stay = True
        self.redis.freeze()
        time.sleep(self.random.uniform(0.1, 2))
        self.redis.thaw()

    def lose_redis(self):
        self.load.stay = True
        self.redis.kill()
        time.sleep(self.random.uniform(0, 1))
        self.redis.start()

    def cut_a_replica_off(self):
        self.load.stay = True
        way = self.random.choice(self.ways)
        way.lead_to(None)
        time.sleep(self.random.uniform(0.1, 2))
        way.lead_to(self.redis.port)

    def move_all_streams(self):
        self.load.move_every = 2
        time.sleep(1)
        self.load.move_every = 0

    def terminate_and_reset(self):
        session_id = f"ended-{len(self.ended)}"
        self.ended[session_id] = self.replica().terminate_session(session_id).verdict_id
        for name in self.random.sample(sorted(self.ended), min(3, len(self.ended))):
            self.check(name)

    def check(self, session_id):
        """A terminated session is so on every replica."""
        for replica in self.cluster:
            request = detection_pb.RecordEventRequest(event=event(session_id, 0))
            result = replica.detection.RecordEvent(request, timeout=DEADLINE_SECS).result
            assert result.action == ACTION_TERMINATE and result.verdict.verdict_id == self.ended[session_id], result

    def recover(self):
        """Two faults at once may lose what was answered, so the next one waits."""
        self.cluster.wait_for_redis()
        wait_for(
            lambda: all(replica.metric("unstuck_cluster_replicas") == 3 for replica in self.cluster), "all replicas are seen"
        )
        self.load.wait_for_events(100)
        pause, self.load.longest_pause = self.load.longest_pause, 0.0
        self.load.held.set()
        wait_for(lambda: self.cluster.total("unstuck_cluster_unsaved_sessions") == 0, "everything is saved")
        self.load.held.clear()
        self.load.stay = False
        return pause


KINDS = [
    "kill_a_replica", "stop_a_replica", "freeze_a_replica", "freeze_redis", "lose_redis", "cut_a_replica_off",
    "move_all_streams", "terminate_and_reset",
]


def rss_mib(process):
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) // 1024


def run(minutes, seed):
    folder = Path(tempfile.mkdtemp(prefix="unstuck-soak-"))
    (folder / "alone").mkdir()
    with peer.running_server(folder / "alone") as server:
        expected = answers_of_one_process(server.detection)
    pauses, counts = collections.defaultdict(float), collections.Counter()
    with Redis(folder / "redis") as redis, Switch(redis.port) as one, Switch(redis.port) as two, Switch(redis.port) as three:
        ways = [one, two, three]
        with Cluster(folder, [way.url for way in ways], SETTINGS) as cluster:
            addresses = [replica.grpc for replica in cluster]
            targets = [addresses[at % 3:] + addresses[:at % 3] for at in range(BROKERS)]
            with Load(expected, targets, patience_secs=0.5) as load:
                load.deadline = time.monotonic() + minutes * 60 + 20 * DEADLINE_SECS
                faults = Faults(cluster, redis, ways, load, seed)
                end = time.monotonic() + minutes * 60
                while time.monotonic() < end:
                    began = time.monotonic()
                    load.wait_for_events(1)
                    load.longest_pause = 0.0
                    kind = faults.random.choice(KINDS)
                    getattr(faults, kind)()
                    counts[kind] += 1
                    pauses[kind] = max(pauses[kind], faults.recover())
                    assert not load.unexpected, (kind, load.unexpected[:3])
                    time.sleep(max(0.0, FAULT_SECS - (time.monotonic() - began)))
                report = load.stop()
                wait_for(lambda: cluster.total("unstuck_cluster_unsaved_sessions") == 0, "everything is saved")
                load.continue_on(cluster)
                for session_id in faults.ended:
                    faults.check(session_id)
            print(f"{report.events} events, {report.resent} sent again, {report.reconnects} reconnects, seed {seed}")
            print(f"{sum(counts.values())} faults; the longest pause of a broker with each kind, in ms:")
            for kind in KINDS:
                print(f"  {kind:20} {counts[kind]:4} faults {pauses[kind] * 1000:8.0f}")
            print(f"memory of the replicas: {[rss_mib(replica) for replica in cluster]} MiB, of Redis {rss_mib(redis)} MiB")
            print(f"lost {len(report.lost)}, doubled {len(report.doubled)}, reordered {len(report.reordered)}, different {len(report.different)}, {len(report.errors)} errors")
            report.check()


if __name__ == "__main__":
    run(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 1_000_000)
