rule deduplication_signatures:
    """Compute text hashes and MinHash signatures."""
    input:
        RUN.inputs("deduplication.signatures"),
    output:
        RUN.stamp("deduplication.signatures"),
    log:
        RUN.log("deduplication.signatures"),
    benchmark:
        RUN.benchmark("deduplication.signatures")
    conda:
        "../environment.yml"
    threads: RUN.threads("deduplication.signatures")
    resources:
        **RUN.resources("deduplication.signatures"),
    params:
        job=JOB,
    shell:
        "{params.job} --node deduplication.signatures --work {wildcards.work} > {log:q} 2>&1"


rule deduplication_clusters:
    """Find duplicates over all units."""
    input:
        RUN.inputs("deduplication.clusters"),
    output:
        RUN.stamp("deduplication.clusters"),
    log:
        RUN.log("deduplication.clusters"),
    benchmark:
        RUN.benchmark("deduplication.clusters")
    conda:
        "../environment.yml"
    threads: RUN.threads("deduplication.clusters")
    resources:
        **RUN.resources("deduplication.clusters"),
    params:
        job=JOB,
    shell:
        "{params.job} --node deduplication.clusters --work {wildcards.work} > {log:q} 2>&1"


rule deduplication:
    """Mark the documents that leave."""
    input:
        RUN.inputs("deduplication"),
    output:
        RUN.stamp("deduplication"),
    log:
        RUN.log("deduplication"),
    benchmark:
        RUN.benchmark("deduplication")
    conda:
        "../environment.yml"
    threads: RUN.threads("deduplication")
    resources:
        **RUN.resources("deduplication"),
    params:
        job=JOB,
    shell:
        "{params.job} --node deduplication --work {wildcards.work} > {log:q} 2>&1"
