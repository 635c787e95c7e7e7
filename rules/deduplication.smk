rule deduplication_signatures:
    """Compute text hashes and MinHash signatures."""
    input:
        DAG.inputs("deduplication.signatures"),
    output:
        DAG.stamp("deduplication.signatures"),
    log:
        DAG.log("deduplication.signatures"),
    benchmark:
        DAG.benchmark("deduplication.signatures")
    conda:
        "../environment.yml"
    threads: DAG.threads("deduplication.signatures")
    resources:
        mem_mb=DAG.memory("deduplication.signatures"),
    shell:
        "{JOB} --plan {PLAN} --node deduplication.signatures --work {wildcards.work} > {log:q} 2>&1"


rule deduplication_clusters:
    """Find duplicates over all units."""
    input:
        DAG.inputs("deduplication.clusters"),
    output:
        DAG.stamp("deduplication.clusters"),
    log:
        DAG.log("deduplication.clusters"),
    benchmark:
        DAG.benchmark("deduplication.clusters")
    conda:
        "../environment.yml"
    threads: DAG.threads("deduplication.clusters")
    resources:
        mem_mb=DAG.memory("deduplication.clusters"),
    shell:
        "{JOB} --plan {PLAN} --node deduplication.clusters --work {wildcards.work} > {log:q} 2>&1"


rule deduplication:
    """Mark the documents that leave."""
    input:
        DAG.inputs("deduplication"),
    output:
        DAG.stamp("deduplication"),
    log:
        DAG.log("deduplication"),
    benchmark:
        DAG.benchmark("deduplication")
    conda:
        "../environment.yml"
    threads: DAG.threads("deduplication")
    resources:
        mem_mb=DAG.memory("deduplication"),
    shell:
        "{JOB} --plan {PLAN} --node deduplication --work {wildcards.work} > {log:q} 2>&1"
