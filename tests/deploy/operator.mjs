// Validates the objects on standard input by the schemas of the Prometheus
// operator's definitions.

import { text } from "node:stream/consumers";

import { PrometheusRule, ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const KINDS = { PrometheusRule, ServiceMonitor };

for (const object of JSON.parse(await text(process.stdin))) {
  new KINDS[object.kind](object).validate();
}
